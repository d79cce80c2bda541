from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.metrics import artifacts
from rrg_hf.metrics.artifacts import (
    PREPARED,
    Published,
    PublishedFile,
    PublishedRepo,
    preparation,
    prepare,
    prepared_folder,
    require_prepared,
)
from rrg_hf.metrics.chexbert import CheXbertReader
from rrg_hf.metrics.radgraph import RadGraphReader
from tests.metrics.tiny_ratescore import write_tiny_ratescore
from tests.tiny_chexbert import make_checkpoint, make_tokenizer
from tests.tiny_radgraph import SHAPES, make_archive

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def chexbert(tmp_path: Path) -> tuple[Path, Path]:
    tokenizer = make_tokenizer(tmp_path / "words")
    size = len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    return make_checkpoint(tmp_path / "chexbert.pth", size), tokenizer


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_what_is_published_is_pinned_as_far_as_known() -> None:
    xl = PREPARED["radgraph-xl"].file
    assert xl is not None and len(xl.revision or "") == 40 and len(xl.sha256 or "") == 64
    chexbert = PREPARED["chexbert"].file
    assert chexbert is not None and chexbert.sha256 and chexbert.url.endswith("RRG_scorers/resolve/main/chexbert.pth")
    assert "Unsettled" in PREPARED["chexbert"].licence
    assert all(published.licence and published.metrics for published in PREPARED.values())


def test_a_file_brought_by_hand(chexbert: tuple[Path, Path], home: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint, tokenizer = chexbert
    with pytest.raises(ConfigError, match=r"chexbert is not prepared.*rrg metrics prepare chexbert"):
        require_prepared("chexbert")
    folder = prepare("chexbert", from_file=checkpoint, tokenizer=tokenizer)
    assert folder == home / "metrics" / "chexbert" == prepared_folder("chexbert")
    assert "not the published chexbert.pth: its checksum differs" in caplog.text
    (source,) = (preparation(folder) or {})["sources"]
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert (source["from_file"], source["published"], source["sha256"]) == (True, False, digest)
    assert require_prepared("chexbert") == str(folder)
    assert prepare("chexbert") == folder  # nothing left to do
    reader = CheXbertReader(device="cpu")
    assert len(reader(["Edema."])[0]["classes"]) == 14
    with pytest.raises(ConfigError, match=r"is not empty.*--overwrite"):
        prepare("chexbert", from_file=checkpoint, tokenizer=tokenizer)
    prepare("chexbert", from_file=checkpoint, tokenizer=tokenizer, overwrite=True)
    assert CheXbertReader(device="cpu").revision == reader.revision
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_an_archive_says_itself_what_it_needs(tmp_path: Path) -> None:
    """RadGraph v1 has no published checksum; the archive names its tokenizer."""
    archive, tokenizer = make_archive(tmp_path, SHAPES["v1"])
    folder = prepare("radgraph", from_file=str(archive), tokenizer=tokenizer, output=tmp_path / "mine")
    (source,) = (preparation(folder) or {})["sources"]
    assert source["published"] is None and source["commit"] is None
    assert RadGraphReader(folder, backend="radgraph", device="cpu")(["Edema."])[0]["text"]


def test_a_broken_file_leaves_nothing_behind(tmp_path: Path, chexbert: tuple[Path, Path], home: Path) -> None:
    broken = tmp_path / "chexbert.pth"
    broken.write_bytes(broken.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"chexbert\.pth cannot be converted"):
        prepare("chexbert", from_file=broken, tokenizer=chexbert[1])
    assert not prepared_folder("chexbert").exists() and not list((home / "metrics").iterdir())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("radgraph2", {}, "Nothing is published under 'radgraph2'"),
        ("chexbert", {"from_file": "gone.pth"}, r"'gone\.pth' does not exist"),
        ("chexbert", {"from_file": [".", "."]}, "one file"),
        ("green", {"tokenizer": "x"}, "Drop --tokenizer"),
        ("ratescore", {"from_file": __file__}, "is a file"),
    ],
)
def test_requests_that_cannot_work(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(name, **options)


def test_require_prepared_takes_folders_and_hub_ids(tmp_path: Path) -> None:
    assert require_prepared("chexbert", tmp_path) == str(tmp_path)
    assert require_prepared("chexbert", "someone/chexbert") == "someone/chexbert"
    with pytest.raises(ConfigError, match="neither a folder here nor a Hub id"):
        require_prepared("chexbert", "./not/here/at/all")


@pytest.mark.parametrize("name", ["chexbert", "radgraph", "radgraph-xl", "ratescore"])
def test_offline_says_which_file_to_bring(no_hub: None, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        prepare(name)
    message = str(error.value)
    assert "cannot be reached" in message and f"rrg metrics prepare {name} --from-file" in message
    expected = {"chexbert": "chexbert.pth (1,310 MB)", "radgraph": "radgraph.tar.gz (432 MB)",
                "radgraph-xl": "resolve/6646433b3ad83a10f6e141db76d0ece44312b236/radgraph-xl.tar.gz",
                "ratescore": "Angelakeke/RaTE-NER-Deberta"}  # fmt: skip
    assert expected[name] in message and "huggingface.co" in message


def test_ratescore_is_two_folders(tmp_path: Path) -> None:
    given = write_tiny_ratescore(tmp_path / "given")
    folder = prepare("ratescore", from_file=given)
    assert (folder / "ner" / "config.json").is_file() and (folder / "encoder" / "model.safetensors").is_file()
    again = prepare("ratescore", from_file=[given / "ner", given / "encoder"], output=tmp_path / "two")
    assert {path.name for path in again.iterdir()} == {"ner", "encoder", ".prepared"}
    (given / "ner" / "tokenizer.json").unlink()
    with pytest.raises(Exception, match=r"no tokenizer\.json"):
        prepare("ratescore", from_file=given, output=tmp_path / "three")
    shutil.rmtree(given / "encoder")
    with pytest.raises(ConfigError, match="There is no folder"):
        prepare("ratescore", from_file=given, output=tmp_path / "three")


class Hub(ThreadingHTTPServer):
    """The Hub's file requests, for one repository; the first download of `broken` stops half-way."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.broken: set[str] = set()
        self.ranges: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        if self.path.startswith("/api/models/"):
            if "/tree/" in self.path:
                files = [{"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                         for name, content in self.server.files.items()]  # fmt: skip
                self._send(200, json.dumps(files).encode(), {}, body)
                return
            siblings = [{"rfilename": name} for name in self.server.files]
            self._send(200, json.dumps({"id": "x", "sha": COMMIT, "siblings": siblings}).encode(), {}, body)
            return
        name = self.path.split("/resolve/")[-1].split("/", 1)[-1]
        content = self.server.files.get(name)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            return
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if body:
            self.server.ranges.append(asked)
        if asked and asked.startswith("bytes="):
            start = int(asked[6:].split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(206, content[start:], headers, body)
        elif body and name in self.server.broken:
            self.server.broken.discard(name)
            self._send(200, content, headers, body, sent=len(content) // 2)
        else:
            self._send(200, content, headers, body)

    def _send(self, code: int, content: bytes, headers: dict[str, str], body: bool, sent: int | None = None) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[:sent])
        if sent is not None:
            self.close_connection = True


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    import huggingface_hub.constants

    server = Hub({})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)  # what is kept of a broken download is whole chunks
    yield server
    server.shutdown()
    server.server_close()


def publish(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    monkeypatch.setitem(artifacts.PREPARED, name, replace(PREPARED[name], **changes))


def test_a_broken_download_is_continued_and_checked(
    hub: Hub, chexbert: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, tokenizer = chexbert
    content = checkpoint.read_bytes()
    hub.files["chexbert.pth"] = content
    hub.broken.add("chexbert.pth")
    digest = hashlib.sha256(content).hexdigest()
    file = PublishedFile("StanfordAIMI/RRG_scorers", "chexbert.pth", sha256=digest)
    publish(monkeypatch, "chexbert", file=file)
    folder = prepare("chexbert", tokenizer=tokenizer, progress=False)
    assert hub.ranges[0] in (None, "bytes=0-") and any(
        asked and int(asked[6:].split("-")[0]) > 0 for asked in hub.ranges
    )
    (source,) = (preparation(folder) or {})["sources"]
    assert source["commit"] == COMMIT and source["published"] is True and source["sha256"] == digest


def test_a_replaced_file_is_refused(hub: Hub, chexbert: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files["chexbert.pth"] = chexbert[0].read_bytes()
    with pytest.raises(DataError, match=r"has the SHA-256 .* published is 6550703c"):
        prepare("chexbert", tokenizer=chexbert[1], progress=False)
    assert not prepared_folder("chexbert").exists()
    hub.files.clear()
    with pytest.raises(ConfigError, match=r"The Hub refused \(.*NotFound.*--from-file chexbert\.pth"):
        prepare("chexbert", tokenizer=chexbert[1], progress=False)


def test_repositories_are_taken_at_their_commit(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrg_hf.metrics.green_prompt.green_template", lambda **_: "{reference} {candidate}")
    hub.files = {"config.json": b"{}", "model.safetensors": b"weights", "training_args.bin": b"left out"}
    publish(monkeypatch, "green", repos=(PublishedRepo("StanfordAIMI/GREEN-radllama2-7b"),))
    folder = prepare("green", progress=False)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", ".prepared"}
    assert (preparation(folder) or {})["sources"] == [
        {"repo_id": "StanfordAIMI/GREEN-radllama2-7b", "commit": COMMIT, "from_file": False}
    ]
    assert isinstance(PREPARED["green"], Published)
