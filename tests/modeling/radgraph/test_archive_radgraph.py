"""Archives are read without trusting them."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rrg_hf.modeling.radgraph import archive_radgraph
from rrg_hf.modeling.radgraph.archive_radgraph import read_archive
from tests.tiny_radgraph import write_tar


def weights(content: object = None) -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2)} if content is None else content, buffer)
    return buffer.getvalue()


FILES = {
    "config.json": b'{"model": {}}',
    "weights.th": weights(),
    "vocabulary/non_padded_namespaces.txt": b"*labels\n*tags\n",
    "vocabulary/None__ner_labels.txt": "\nANAT-DP\nOBS\u00e9\n".encode(),
    "vocabulary/None__relation_labels.txt": b"modify\r\nlocated_at",
}


def check(path: Path) -> None:
    archive = read_archive(path)
    assert archive.config == {"model": {}}
    assert torch.equal(archive.weights["a"], torch.ones(2))
    # the empty first line is the null label; the last line's end is no entry
    assert archive.vocabulary == {
        "None__ner_labels": ["", "ANAT-DP", "OBS\u00e9"],
        "None__relation_labels": ["modify", "located_at"],
    }


def test_reads_archives_and_folders(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar.gz", FILES)
    check(tmp_path / "a.tar.gz")
    write_tar(tmp_path / "nested.tar.gz", {f"./model/{name}": content for name, content in FILES.items()})
    check(tmp_path / "nested.tar.gz")
    (tmp_path / "plain.tar").write_bytes(gzip.decompress((tmp_path / "a.tar.gz").read_bytes()))
    check(tmp_path / "plain.tar")
    write_tar(tmp_path / "more.tar.gz", {**FILES, ".DS_Store": b"x", "meta.json": b"{}", "vocabulary/.lock": b""})
    check(tmp_path / "more.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        tar.extractall(tmp_path / "folder", filter="data")
    check(tmp_path / "folder")


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (tarfile.TarInfo("../../escape.txt"), "leads out of the archive"),
        (tarfile.TarInfo("/etc/passwd"), "leads out of the archive"),
        (tarfile.TarInfo("vocabulary/..\\..\\x.txt"), "leads out of the archive"),
        (link("config.json", "/etc/passwd", tarfile.SYMTYPE), "link or device"),
        (link("vocabulary/a.txt", "config.json", tarfile.LNKTYPE), "link or device"),
        (link("device", "", tarfile.CHRTYPE), "link or device"),
        (link("pipe", "", tarfile.FIFOTYPE), "link or device"),
        (tarfile.TarInfo("config.json"), "twice"),
        (tarfile.TarInfo("other/weights.th"), "several models"),
    ],
)
def test_unsafe_members(tmp_path: Path, member: tarfile.TarInfo, message: str) -> None:
    write_tar(tmp_path / "plain.tar.gz", FILES)
    raw = gzip.decompress((tmp_path / "plain.tar.gz").read_bytes())
    buffer = io.BytesIO(raw)
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        if member.name.startswith("other"):
            member.size = len(FILES["weights.th"])
            tar.addfile(member, io.BytesIO(FILES["weights.th"]))
        else:
            tar.addfile(member)
    (tmp_path / "bad.tar.gz").write_bytes(gzip.compress(buffer.getvalue()))
    with pytest.raises(ValueError, match=message):
        read_archive(tmp_path / "bad.tar.gz")
    assert {path.name for path in tmp_path.iterdir()} == {"plain.tar.gz", "bad.tar.gz"}, "nothing was unpacked"


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar.gz"
    write_tar(path, {**FILES, "config.json": b" " * (5 << 20)})
    with pytest.raises(ValueError, match=r"'config.json' of 5242880 bytes; 4194304 are allowed"):
        read_archive(path)
    write_tar(path, {**FILES, "bomb.bin": b"\0" * (8 << 20)})
    monkeypatch.setattr(archive_radgraph, "_MAX_TOTAL_BYTES", 4 << 20)
    with pytest.raises(ValueError, match="more than"):
        read_archive(path)
    monkeypatch.setattr(archive_radgraph, "_MAX_TOTAL_BYTES", 1 << 30)
    monkeypatch.setattr(archive_radgraph, "_MAX_MEMBERS", 4)
    with pytest.raises(ValueError, match="more than 4 files"):
        read_archive(path)


def test_a_giant_header_is_not_read_into_memory(tmp_path: Path) -> None:
    """A pax header states its own size, and tarfile would read all of it at once."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 32
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + b"\0" * 10_240))
    with pytest.raises(ValueError, match=r"cannot be read as a tar\.gz archive"):
        read_archive(path)


class _Exploit:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return Path.touch, (Path("owned"),)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(_Exploit(), protocol=2),
        weights({"a": _Exploit()}),
        weights([torch.ones(1)]),
        weights({"a": 1}),
        b"",
        b"junk",
    ],
)
def test_weights_are_tensors_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "a.tar.gz", {**FILES, "weights.th": content})
    with pytest.raises(ValueError, match=r"weights.th of a.tar.gz"):
        read_archive(tmp_path / "a.tar.gz")
    assert not (tmp_path / "owned").exists()


def test_damaged_and_incomplete_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with pytest.raises(ValueError, match="There is no file"):
        read_archive(path)
    write_tar(path, FILES)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no archive", whole[:40] + b"\xff" * 50 + whole[90:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.tar\.gz"):
            read_archive(path)
    for missing in ("config.json", "weights.th"):
        write_tar(path, {name: content for name, content in FILES.items() if name != missing})
        with pytest.raises(ValueError, match=f"it has no {missing}"):
            read_archive(path)
    write_tar(path, {name: content for name, content in FILES.items() if not name.startswith("vocabulary/None")})
    with pytest.raises(ValueError, match="it has no vocabulary"):
        read_archive(path)
    for broken in (b"{", b"[]", b"\xff"):
        write_tar(path, {**FILES, "config.json": broken})
        with pytest.raises(ValueError, match=r"config.json of a.tar.gz"):
            read_archive(path)


def test_weights_that_grow_when_read(tmp_path: Path) -> None:
    """One number posing as a billion, and a weights.th that is compressed inside."""
    views, stored, packed = io.BytesIO(), io.BytesIO(FILES["weights.th"]), io.BytesIO()
    torch.save({"a": torch.zeros(1).expand(1 << 30)}, views)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    for content, message in ((views, "declares weights of 4294967296"), (packed, "cannot be read as plain tensors")):
        write_tar(tmp_path / "a.tar.gz", {**FILES, "weights.th": content.getvalue()})
        with pytest.raises(ValueError, match=message):
            read_archive(tmp_path / "a.tar.gz")
