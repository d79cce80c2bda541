"""The judge's prompt: read from an archive without running it, checked, kept, and explained when it is missing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.metrics import green_prompt
from rrg_hf.metrics.green_prompt import (
    ARCHIVE,
    archive_url,
    green_template,
    package_index,
    read_template,
    render_prompt,
)

TEMPLATE = "Compare.\n\n    1. {reference}\n\n    2. {candidate}\n    (a) {{braces}}\n"
SOURCE = '''
import package_that_does_not_exist
raise SystemExit("the archive must not be run")

def clean(text):
    return f"{text}!"

def make_prompt(text1, text2, max_len=300):
    """What it does."""
    text1 = " ".join(text1.split()[:max_len])
    prompt = f"""Compare.\\n
    1. {text1}

    2. {text2}
    (a) {{{{braces}}}}
"""
    return prompt
'''


def archive(source: str | None = SOURCE, member: str = "green_score/utils.py") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in (("setup.py", "raise SystemExit"), (member, source)):
            if text is not None:
                info = tarfile.TarInfo(f"green_score-0.0.12/{name}")
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Takes the synthetic archive for the released one, and a folder of its own for the cache."""
    rendered = render_prompt(TEMPLATE, "REF", "CAND")
    monkeypatch.setattr(green_prompt, "RENDERED_LENGTH", len(rendered))
    monkeypatch.setattr(green_prompt, "RENDERED_SHA256", hashlib.sha256(rendered.encode()).hexdigest())
    monkeypatch.setattr(green_prompt, "ARCHIVE_SHA256", hashlib.sha256(archive()).hexdigest())
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.invalid/simple/")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "home"


def serve(monkeypatch: pytest.MonkeyPatch, pages: dict[str, tuple[bytes, str]]) -> list[str]:
    asked: list[str] = []

    def get(url: str, accept: str) -> tuple[bytes, str, str]:
        asked.append(url)
        if url not in pages:
            raise urllib.error.URLError("unreachable")
        return (*pages[url], url)

    monkeypatch.setattr(green_prompt, "_get", get)
    return asked


def test_rendering() -> None:
    assert render_prompt("A {reference} B {candidate} C", "x\n y", "z") == "A x y B z C"
    assert render_prompt("A {candidate} B {reference}", "x", "z") == "A z B x"
    assert render_prompt("{reference}{candidate}", "{candidate}", "{x}") == "{candidate}{x}"
    long = " ".join(str(number) for number in range(400))
    assert render_prompt("{reference}|{candidate}", long, long, words=2) == "0 1|0 1"
    assert len(render_prompt("{reference}|{candidate}", long, "").split()) == 300


def test_reads_the_source_without_running_it() -> None:
    assert read_template(archive()) == TEMPLATE
    assert read_template(SOURCE.encode()) == TEMPLATE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(None), "holds no green_score/utils.py"),
        (archive(SOURCE, "other/utils.py"), "holds no green_score/utils.py"),
        (archive()[:100], "cannot be read"),
        (archive("def make_prompt(a, b):\n    return a + b\n"), "no function make_prompt with an f-string"),
        (archive("def other(a, b):\n    return f'{a}{b}'\n"), "no function make_prompt"),
        (archive("def make_prompt(a, b):\n    return f'{a} {b} {open(a)}'\n"), "something else than its two reports"),
        (archive("def make_prompt(a, b):\n    return f'{a!r} {b}'\n"), "something else than its two reports"),
        (archive("def make_prompt(a, b):\n    return f'{a} only'\n"), r"holds \{candidate\} 0 times"),
        (archive("def make_prompt(:"), "no Python source"),
        (b"\x00\x01", "no Python source"),
    ],
)
def test_other_archives_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_template(data)


def test_a_link_in_the_archive_is_not_followed() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        info = tarfile.TarInfo("green_score-0.0.12/green_score/utils.py")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(ConfigError, match="holds no"):
        read_template(stream.getvalue())


JSON_PAGE = json.dumps(
    {
        "files": [
            {"filename": "green_score-0.0.11.tar.gz", "url": "old"},
            {"filename": ARCHIVE, "url": f"../files/{ARCHIVE}"},
        ]
    }
).encode()
HTML_PAGE = (
    f'<html><a href="../files/green_score-0.0.11.tar.gz#sha256=00">old</a>'
    f'<a data-x="1" href="../files/{ARCHIVE}#sha256=11">new</a></html>'
).encode()
PAGE = "https://user:secret@index.invalid/simple/green-score/"


@pytest.mark.parametrize(
    ("page", "kind"), [(JSON_PAGE, "application/vnd.pypi.simple.v1+json"), (HTML_PAGE, "text/html; charset=utf-8")]
)
def test_fetches_once_and_keeps_it(published: Path, monkeypatch: pytest.MonkeyPatch, page: bytes, kind: str) -> None:
    file = f"https://user:secret@index.invalid/simple/files/{ARCHIVE}"
    asked = serve(monkeypatch, {PAGE: (page, kind), file: (archive(), "application/gzip")})
    assert green_template() == TEMPLATE
    assert asked == [PAGE, file]
    assert green_template() == TEMPLATE and len(asked) == 2
    kept = list(published.rglob("*.txt"))
    assert [path.read_text() for path in kept] == [TEMPLATE]
    kept[0].write_text("damaged {reference} {candidate}")
    assert green_template() == TEMPLATE and len(asked) == 4
    assert kept[0].read_text() == TEMPLATE


def test_what_cannot_be_fetched_is_explained(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {})
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        green_template()
    message = str(caught.value)
    assert ARCHIVE in message and "https://pypi.org/project/green-score/0.0.12/#files" in message
    assert "rrg metrics prepare green --from-file" in message and "from_file=" in message
    assert "index.invalid" in message and "secret" not in message
    serve(monkeypatch, {PAGE: (b'{"files": []}', "application/json")})
    with pytest.raises(ConfigError, match="does not list"):
        green_template()
    serve(monkeypatch, {PAGE: (b"[1]", "application/json")})
    with pytest.raises(ConfigError, match="cannot be read"):
        green_template()
    file = f"https://user:secret@index.invalid/simple/files/{ARCHIVE}"
    serve(monkeypatch, {PAGE: (JSON_PAGE, "application/json"), file: (archive(SOURCE + "#"), "")})
    with pytest.raises(ConfigError, match="checksum differs"):
        green_template()
    assert not list(published.rglob("*.txt"))


def test_offline_is_respected(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = serve(monkeypatch, {})
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        green_template()
    assert not asked


def test_from_a_file_at_hand(published: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = tmp_path / ARCHIVE
    with pytest.raises(ConfigError, match="No file"):
        green_template(from_file=path)
    path.write_bytes(archive())
    assert green_template(from_file=path) == TEMPLATE
    path.unlink()
    assert green_template() == TEMPLATE
    changed = tmp_path / "utils.py"
    changed.write_text(SOURCE.replace("Compare", "Judge"))
    with pytest.raises(ConfigError, match="another prompt"):
        green_template(from_file=changed)


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    published: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("RRG_HF_HOME", str(blocked))
    path = tmp_path / ARCHIVE
    path.write_bytes(archive())
    assert green_template(from_file=path) == TEMPLATE
    assert "cannot be kept" in caplog.text


def test_links_of_an_index_page() -> None:
    assert archive_url(HTML_PAGE, "text/html", "https://a.invalid/simple/green-score/") == (
        f"https://a.invalid/simple/files/{ARCHIVE}"
    )
    assert archive_url(b"<a href='x.whl'>x</a>", "text/html", "https://a.invalid/") is None


def test_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://a.invalid/simple/")
    assert package_index() == "https://a.invalid/simple"
    monkeypatch.delenv("PIP_INDEX_URL")

    def run(command: Any, **settings: Any) -> Any:
        raise OSError("no pip")

    monkeypatch.setattr(green_prompt.subprocess, "run", run)
    assert package_index() == "https://pypi.org/simple"


def test_only_web_addresses_are_opened() -> None:
    with pytest.raises(ValueError, match="not a web address"):
        green_prompt._get("ftp://a.invalid/x", "*/*")


def test_a_local_index_is_read(published: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "simple" / "green-score"
    folder.mkdir(parents=True)
    content = archive()  # holds the time it was made at
    (folder / ARCHIVE).write_bytes(content)
    body, _, url = green_prompt._get((folder / ARCHIVE).as_uri(), "*/*")
    assert body == content and url.endswith(ARCHIVE)


def test_the_released_archive() -> None:
    path = os.environ.get("RRG_GREEN_SDIST")
    if not path or not Path(path).is_file():
        pytest.skip("set RRG_GREEN_SDIST to green_score-0.0.12.tar.gz to check the released prompt")
    data = Path(path).read_bytes()
    assert hashlib.sha256(data).hexdigest() == green_prompt.ARCHIVE_SHA256
    rendered = render_prompt(read_template(data), "REF", "CAND")
    assert len(rendered) == 1851
    assert hashlib.sha256(rendered.encode()).hexdigest() == (
        "4e621f21f3a8802263136333c20f59e6b103d87179c675cea196e36e81cf6eb0"
    )
