"""The prompt that GREEN's judges were fine-tuned on, read from where its authors publish it.

The wording is not part of this package. It stands in one function of the released `green-score` source archive; the
archive is read in memory and its source parsed, never executed. What the wording renders to is checked by length and
SHA-256, and it is kept in the cache folder, so the archive is needed once.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import logging
import os
import re
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError

PACKAGE = "green-score"
VERSION = "0.0.12"
ARCHIVE = f"green_score-{VERSION}.tar.gz"
ARCHIVE_SHA256 = "5e1395705b412613e4b73b22c3c63ed87c162277358f0ec08b00af8903d4d0dc"
ARCHIVE_PAGE = f"https://pypi.org/project/{PACKAGE}/{VERSION}/#files"
MEMBER = "green_score/utils.py"
FUNCTION = "make_prompt"
# Of the prompt for the reports "REF" and "CAND".
RENDERED_LENGTH = 1851
RENDERED_SHA256 = "4e621f21f3a8802263136333c20f59e6b103d87179c675cea196e36e81cf6eb0"

REFERENCE, CANDIDATE = "{reference}", "{candidate}"
WORDS = 300  # words kept of each report
_PLACES = re.compile(f"{re.escape(REFERENCE)}|{re.escape(CANDIDATE)}")

logger = logging.getLogger(__name__)

_DEFAULT_INDEX = "https://pypi.org/simple"
_LARGEST = 8 * 2**20
_SECONDS = 60


def render_prompt(template: str, reference: str, candidate: str, *, words: int = WORDS) -> str:
    """The judge's question about one pair.

    Args:
        template: text with `{reference}` and `{candidate}` once each.
        reference: reference report.
        candidate: generated report.
        words: each report is cut to this many white-space separated words, joined by single blanks.
    """
    reports = {REFERENCE: " ".join(reference.split()[:words]), CANDIDATE: " ".join(candidate.split()[:words])}
    # one pass, so that a report holding "{candidate}" stays as it is
    return _PLACES.sub(lambda place: reports[place.group()], template)


def check_template(template: str) -> str:
    """The template, if it has its two places.

    Raises:
        ConfigError: `{reference}` or `{candidate}` is missing or comes twice.
    """
    for place in (REFERENCE, CANDIDATE):
        if template.count(place) != 1:
            raise ConfigError(f"The GREEN template holds {place} {template.count(place)} times. Write it once.")
    return template


def green_template(*, from_file: str | os.PathLike[str] | None = None, folder: str | Path | None = None) -> str:
    """The published template: from the cache, from a file at hand, or from the package index.

    Args:
        from_file: the release archive (`green_score-0.0.12.tar.gz`) or its `green_score/utils.py`, read in place of
            the cache and the index.
        folder: where the template is kept; by default `green_prompt` under $RRG_HF_HOME or ~/.cache/rrg_hf.

    Returns:
        Text with `{reference}` and `{candidate}`, for `render_prompt`.

    Raises:
        ConfigError: not in the cache and not to be had: says which file to fetch from where. Or the file holds another
            wording than the published one.
    """
    kept = cached_template(folder)
    if from_file is None:
        if kept.is_file():
            template = kept.read_text(encoding="utf-8")
            if _is_published(template):
                return template
        template = _published(read_template(_fetch()), "the package index's archive")
    else:
        path = Path(from_file)
        if not path.is_file():
            raise ConfigError(f"No file {path.name!r} to read the GREEN prompt from. {_by_hand()}")
        template = _published(read_template(path.read_bytes()), path.name)
    _write(kept, template)
    return template


def cached_template(folder: str | Path | None = None) -> Path:
    """File that keeps the template of this version."""
    if folder is None:
        home = os.environ.get("RRG_HF_HOME")
        folder = (Path(home) if home else Path.home() / ".cache" / "rrg_hf") / "green_prompt"
    return Path(folder) / f"{PACKAGE}-{VERSION}.txt"


def read_template(data: bytes) -> str:
    """The template out of a release archive or of its source file, without running any of it.

    Raises:
        ConfigError: no such member or function, or the function builds its text in another way than by one f-string.
    """
    source = _member(data) if data[:2] == b"\x1f\x8b" else data
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{MEMBER} is no Python source ({type(error).__name__}). {_by_hand()}") from error
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION and len(node.args.args) >= 2:
            names = {node.args.args[0].arg: REFERENCE, node.args.args[1].arg: CANDIDATE}
            for inner in ast.walk(node):
                if isinstance(inner, ast.JoinedStr):
                    return check_template(_template_of(inner, names))
    raise ConfigError(f"{MEMBER} has no function {FUNCTION} with an f-string. {_by_hand()}")


def _template_of(text: ast.JoinedStr, names: dict[str, str]) -> str:
    pieces = []
    for part in text.values:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            pieces.append(part.value)
        elif (
            isinstance(part, ast.FormattedValue)
            and isinstance(part.value, ast.Name)
            and part.value.id in names
            and part.conversion == -1
            and part.format_spec is None
        ):
            pieces.append(names[part.value.id])
        else:
            raise ConfigError(f"{FUNCTION} fills in something else than its two reports. {_by_hand()}")
    return "".join(pieces)


def _member(data: bytes) -> bytes:
    """The one source file of an archive; nothing is written to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for info in archive:
                if info.isfile() and info.name.split("/", 1)[-1] == MEMBER and info.size <= _LARGEST:
                    stream = archive.extractfile(info)
                    if stream is not None:
                        return stream.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ConfigError(f"The archive cannot be read ({type(error).__name__}). {_by_hand()}") from error
    raise ConfigError(f"The archive holds no {MEMBER}. {_by_hand()}")


def _is_published(template: str) -> bool:
    if template.count(REFERENCE) != 1 or template.count(CANDIDATE) != 1:
        return False
    rendered = render_prompt(template, "REF", "CAND")
    digest = hashlib.sha256(rendered.encode("utf-8")).hexdigest()
    return len(rendered) == RENDERED_LENGTH and digest == RENDERED_SHA256


def _published(template: str, origin: str) -> str:
    if not _is_published(template):
        raise ConfigError(
            f"{origin} holds another prompt than the one GREEN's judges were trained on: rendered for 'REF' and "
            f"'CAND' it is not the text of {RENDERED_LENGTH} characters with SHA-256 {RENDERED_SHA256[:12]}... "
            f"{_by_hand()} To use another wording on purpose, pass it as template=."
        )
    return template


def _by_hand() -> str:
    return (
        f"Fetch {ARCHIVE} from {ARCHIVE_PAGE} and run `rrg metrics prepare green --from-file {ARCHIVE}`, or pass the "
        "file as from_file=."
    )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False, newline="") as handle:
            handle.write(text)
        Path(handle.name).replace(path)
    except OSError as error:  # a read-only home: the prompt is fetched again next time
        logger.warning("The GREEN prompt cannot be kept in %s (%s).", path.parent, error.strerror)


# --- the package index ---


def package_index() -> str:
    """Base URL of the package index that pip is set to use, or the default one."""
    chosen = os.environ.get("PIP_INDEX_URL")
    if not chosen:
        command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
            chosen = done.stdout.strip() if done.returncode == 0 else ""
        except (OSError, subprocess.SubprocessError):
            chosen = ""
    return (chosen or _DEFAULT_INDEX).rstrip("/")


def _fetch() -> bytes:
    """The release archive from the package index.

    Raises:
        ConfigError: offline, unreachable, not listed or with another checksum.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise ConfigError(f"The GREEN prompt is not in the cache, and HF_HUB_OFFLINE is set. {_by_hand()}")
    index = package_index()
    page = f"{index}/{PACKAGE}/"
    try:
        # pip's own order of preference: the JSON form where the index has it, else HTML
        listing, kind, base = _get(
            page, "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
        )
        url = archive_url(listing, kind, base)
        data = _get(url, "*/*")[0] if url else None
    except (urllib.error.URLError, OSError, ValueError, TypeError, LookupError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise ConfigError(
            f"The GREEN prompt is not in the cache, and {_shown(page)} cannot be read ({reason}). {_by_hand()}"
        ) from error
    if data is None:
        raise ConfigError(f"{_shown(page)} does not list {ARCHIVE}. {_by_hand()}")
    if hashlib.sha256(data).hexdigest() != ARCHIVE_SHA256:
        raise ConfigError(
            f"{ARCHIVE} from {_shown(page)} is not the released file: its checksum differs. {_by_hand()}"
        )
    return data


def _get(url: str, accept: str) -> tuple[bytes, str, str]:
    """Body, content type and final URL."""
    if not url.startswith(("https://", "http://", "file://")):
        raise ValueError("not a web address")
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "rrg_hf"})
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:
        body = answer.read(_LARGEST + 1)
        if len(body) > _LARGEST:
            raise ValueError("too large")
        return body, answer.headers.get("Content-Type", ""), answer.geturl()


_HREF = re.compile(r"""<a\b[^>]*?\bhref\s*=\s*["']([^"']+)["']""", re.IGNORECASE)


def archive_url(listing: bytes, kind: str, base: str) -> str | None:
    """Address of the release archive in an index page, JSON (PEP 691) or HTML (PEP 503); None if not listed."""
    links: Sequence[Any]
    if "json" in kind:
        links = [entry["url"] for entry in json.loads(listing)["files"] if entry["filename"] == ARCHIVE]
    else:
        links = _HREF.findall(listing.decode("utf-8", errors="replace"))
    for link in links:
        url = urllib.parse.urljoin(base, link.replace("&amp;", "&"))
        path = urllib.parse.urlsplit(url).path
        if path.rsplit("/", 1)[-1] == ARCHIVE:
            return url.split("#", 1)[0]
    return None


def _shown(url: str) -> str:
    """An address without user name and password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
