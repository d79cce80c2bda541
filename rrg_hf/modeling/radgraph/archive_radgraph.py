"""Reads a published RadGraph archive (tar.gz) without trusting it: nothing is unpacked by the names it holds."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import torch

_MAX_MEMBERS = 1_000
_MAX_TEXT_BYTES = 4 << 20
_MAX_WEIGHTS_BYTES = 4 << 30
_MAX_TOTAL_BYTES = 6 << 30
_MAX_READ_BYTES = 64 << 20
_MAX_REUSE = 2  # times its size that a file's weights may add up to; tied weights are stored once

_CONFIG, _WEIGHTS, _VOCABULARY = "config.json", "weights.th", "vocabulary"
_PADDING_FILE = "non_padded_namespaces"


@dataclass
class RadGraphArchive:
    """What an archive holds.

    Attributes:
        config: its config.json.
        weights: parameter name to tensor.
        vocabulary: namespace (file name without .txt) to its lines, in order.
    """

    config: dict[str, Any]
    weights: dict[str, torch.Tensor]
    vocabulary: dict[str, list[str]]


class _BoundedFile:
    """A decompressed stream that refuses to grow without end, however small the compressed file is."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _MAX_READ_BYTES:
            raise ValueError(f"a single header of {size} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or offset > _MAX_TOTAL_BYTES:
            raise ValueError(f"more than {_MAX_TOTAL_BYTES} bytes when unpacked")
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()


def read_archive(path: Path) -> RadGraphArchive:
    """Read config, weights and vocabularies of an archive, or of a folder it was unpacked to.

    Args:
        path: `radgraph.tar.gz` and its like: config.json, weights.th, vocabulary/*.txt, perhaps inside one folder.

    Raises:
        ValueError: not such an archive; or one that holds links, devices, paths that lead out of it, more than it
            may, or weights that are more than plain tensors.
    """
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise ValueError(f"There is no file {path}. Give a RadGraph archive such as radgraph-xl.tar.gz.")
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if compressed else raw
            with tarfile.open(fileobj=_BoundedFile(stream), mode="r:") as tar:  # type: ignore[call-overload]
                return _read_tar(path.name, tar)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        if isinstance(error, _UnfitArchiveError):
            raise ValueError(str(error)) from error.__cause__
        raise ValueError(f"{path.name} cannot be read as a tar.gz archive ({error}). Fetch it again.") from error


class _UnfitArchiveError(ValueError):
    """A message that is already complete."""


def _read_tar(name: str, tar: tarfile.TarFile) -> RadGraphArchive:
    texts: dict[str, bytes] = {}
    weights: dict[str, torch.Tensor] | None = None
    folders: set[PurePosixPath] = set()
    seen: set[PurePosixPath] = set()
    total = 0
    while (member := tar.next()) is not None:
        place = PurePosixPath(member.name)
        if place.is_absolute() or ".." in place.parts or "\\" in member.name:
            raise _UnfitArchiveError(f"{name} holds the path {member.name!r}, which leads out of the archive.")
        if not (member.isreg() or member.isdir()):
            raise _UnfitArchiveError(f"{name} holds {member.name!r}, which is a link or device, not a plain file.")
        total += member.size
        if len(seen) >= _MAX_MEMBERS or total > _MAX_TOTAL_BYTES:
            raise _UnfitArchiveError(f"{name} holds more than {_MAX_MEMBERS} files or {_MAX_TOTAL_BYTES} bytes.")
        if member.isdir():
            continue
        if place in seen:
            raise _UnfitArchiveError(f"{name} holds {member.name!r} twice.")
        seen.add(place)
        is_vocabulary = place.parent.name == _VOCABULARY and place.suffix == ".txt"
        if place.name not in (_CONFIG, _WEIGHTS) and not is_vocabulary:
            continue
        folders.add(place.parent.parent if is_vocabulary else place.parent)
        limit = _MAX_WEIGHTS_BYTES if place.name == _WEIGHTS else _MAX_TEXT_BYTES
        if member.size > limit:
            raise _UnfitArchiveError(f"{name} holds {member.name!r} of {member.size} bytes; {limit} are allowed.")
        content = tar.extractfile(member)
        assert content is not None  # a regular file
        if place.name == _WEIGHTS:
            with tempfile.TemporaryFile() as copy:
                shutil.copyfileobj(content, copy, 1 << 20)
                copy.seek(0)
                weights = _load_weights(copy, name)
        else:
            texts["/".join(place.parts[-2:]) if is_vocabulary else _CONFIG] = content.read(limit)
    if len(folders) > 1:
        raise _UnfitArchiveError(f"{name} holds several models, in the folders {sorted(map(str, folders))}.")
    return _assemble(name, texts, weights)


def _read_folder(path: Path) -> RadGraphArchive:
    texts = {}
    for file in [path / _CONFIG, *sorted((path / _VOCABULARY).glob("*.txt"))]:
        if file.is_file():
            texts[file.relative_to(path).as_posix()] = file.read_bytes()
    weights = None
    if (path / _WEIGHTS).is_file():
        with (path / _WEIGHTS).open("rb") as content:
            weights = _load_weights(content, path.name)
    return _assemble(path.name, texts, weights)


def _load_weights(file: IO[bytes], name: str) -> dict[str, torch.Tensor]:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        if zipfile.is_zipfile(file):
            _check_stored(file, size)
        file.seek(0)
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the damage happens to cause
        raise _UnfitArchiveError(
            f"{_WEIGHTS} of {name} cannot be read as plain tensors; nothing else is loaded from it. Fetch it again."
        ) from error
    if not isinstance(weights, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in weights.items()
    ):
        raise _UnfitArchiveError(f"{_WEIGHTS} of {name} is not a state dict of names and tensors.")
    declared = sum(value.numel() * value.element_size() for value in weights.values())
    if declared > _MAX_REUSE * size:  # views of one number can pose as billions
        raise _UnfitArchiveError(f"{_WEIGHTS} of {name} has {size} bytes but declares weights of {declared}.")
    return dict(weights)


def _check_stored(file: IO[bytes], size: int) -> None:
    """torch compresses nothing, so whatever would grow on reading was not written by it."""
    with zipfile.ZipFile(file) as content:
        members = content.infolist()
    stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    if not stored or sum(member.file_size for member in members) > size:
        raise ValueError("it is compressed, or its parts overlap")


def _assemble(name: str, texts: dict[str, bytes], weights: dict[str, torch.Tensor] | None) -> RadGraphArchive:
    vocabulary = {
        Path(file).stem: _decode(name, file, text, _lines)
        for file, text in texts.items()
        if file != _CONFIG and Path(file).stem != _PADDING_FILE
    }
    missing = [_CONFIG] * (_CONFIG not in texts) + [_WEIGHTS] * (weights is None)
    missing += [f"{_VOCABULARY}/*.txt"] * (not vocabulary)
    if missing or weights is None:
        raise _UnfitArchiveError(f"{name} is no RadGraph archive: it has no {' and no '.join(missing)}.")
    config = _decode(name, _CONFIG, texts[_CONFIG], json.loads)
    if not isinstance(config, dict):
        raise _UnfitArchiveError(f"{_CONFIG} of {name} is not a JSON object.")
    return RadGraphArchive(config, weights, vocabulary)


def _decode(name: str, file: str, text: bytes, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text.decode("utf-8"))
    except ValueError as error:
        raise _UnfitArchiveError(f"{file} of {name} cannot be read: {error}.") from error


def _lines(text: str) -> list[str]:
    """Lines of a vocabulary file. Every line is an entry, the empty one too; only the end of the last is no entry."""
    lines = re.split(r"\r?\n", text)
    return lines[:-1] if lines[-1] == "" else lines
