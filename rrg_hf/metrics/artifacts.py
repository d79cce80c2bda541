"""Published weights of the metrics: where they are, and the folders that the metrics load them from.

`prepare` downloads the published file (pinned, resumable, checked), converts it to a folder with config.json,
model.safetensors and a tokenizer, and notes in `.prepared` where it came from. The metrics load that folder.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError
from .loading import file_sha256

logger = logging.getLogger(__name__)

NOTE = ".prepared"
_REPO_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SCORERS = "StanfordAIMI/RRG_scorers"
_SCORERS_LICENCE = "The model card of StanfordAIMI/RRG_scorers says MIT."

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class PublishedFile:
    """One file on the Hub.

    Attributes:
        repo_id, filename: where it is.
        revision: the commit; None where none is known, then the one found is recorded.
        sha256: of the content, checked after the download; None where it is not known.
        size: bytes, for messages.
    """

    repo_id: str
    filename: str
    revision: str | None = None
    sha256: str | None = None
    size: int | None = None

    @property
    def url(self) -> str:
        return f"https://huggingface.co/{self.repo_id}/resolve/{self.revision or 'main'}/{self.filename}"


@dataclass(frozen=True)
class PublishedRepo:
    """A whole Hub repository whose files are used as they are.

    Attributes:
        repo_id, revision: as in `PublishedFile`.
        folder: subfolder it goes to, "" for the prepared folder itself.
        patterns: files that are needed.
    """

    repo_id: str
    folder: str = ""
    revision: str | None = None
    patterns: tuple[str, ...] = ("*.json", "*.safetensors", "*.txt", "*.model", "LICENSE*", "README.md")


@dataclass(frozen=True)
class Published:
    """What a metric needs.

    Attributes:
        metrics: who uses it.
        licence: what its authors state.
        file: archive or checkpoint to convert, or None.
        tokenizer, tokenizer_revision: Hub repository of the tokenizer that goes with `file`; None: the archive says.
        repos: repositories to take as they are.
    """

    metrics: str
    licence: str
    file: PublishedFile | None = None
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    repos: tuple[PublishedRepo, ...] = ()


PREPARED: dict[str, Published] = {
    "chexbert": Published(
        "chexbert_f1, radcliq",
        f"Unsettled: {_SCORERS_LICENCE} The CheXbert repository has a Stanford licence that keeps commercial use "
        "separate. Clear it before you use it commercially or host a copy.",
        PublishedFile(
            _SCORERS,
            "chexbert.pth",
            sha256="6550703c92d640e1e04d8105a7a185d76ece0f25fcbf033d292785bf22c0fde1",
            size=1_310_000_000,
        ),
        tokenizer="google-bert/bert-base-uncased",
    ),
    "radgraph": Published(
        "radcliq, radgraph_f1 (backend radgraph)",
        f"{_SCORERS_LICENCE} Trained on RadGraph 1.0 (PhysioNet).",
        PublishedFile(_SCORERS, "radgraph.tar.gz", size=432_000_000),
    ),
    "radgraph-xl": Published(
        "radgraph_f1",
        _SCORERS_LICENCE,
        PublishedFile(
            _SCORERS,
            "radgraph-xl.tar.gz",
            revision="6646433b3ad83a10f6e141db76d0ece44312b236",
            sha256="fadb5a3454e8996714b609e3105a07e447fa61aa88fffe966b650959475117b6",
            size=416_179_571,
        ),
        tokenizer="microsoft/BiomedVLP-CXR-BERT-general",
        tokenizer_revision="6172dbfa7c061d635a4b86761b80e324e1995496",
    ),
    "modern-radgraph-xl": Published(
        "radgraph_f1 (backend modern-radgraph-xl)",
        _SCORERS_LICENCE,
        PublishedFile(_SCORERS, "modern-radgraph-xl.tar.gz", size=579_388_064),
    ),
    "echograph": Published(
        "radgraph_f1 (backend echograph)",
        f"{_SCORERS_LICENCE} Made for echocardiography reports.",
        PublishedFile(_SCORERS, "echograph.tar.gz", size=434_000_000),
    ),
    "ratescore": Published(
        "ratescore",
        "RaTE-NER-Deberta: MIT. BioLORD-2023-C: the IHTSDO and NLM terms of SNOMED CT and UMLS.",
    ),
    "green": Published(
        "green",
        "GREEN-radllama2-7b: Llama 2 Community License. The prompt is read from the authors' release.",
        repos=(PublishedRepo("StanfordAIMI/GREEN-radllama2-7b"),),
    ),
}


def _published(name: str) -> Published:
    if name not in PREPARED:
        raise ConfigError(f"Nothing is published under {name!r}. There are {list(PREPARED)}.")
    published = PREPARED[name]
    if name == "ratescore":
        from .ratescore_folder import PATTERNS, REPOSITORIES

        repos = tuple(PublishedRepo(repo, folder, None, PATTERNS) for folder, repo in REPOSITORIES.items())
        return Published(published.metrics, published.licence, repos=repos)
    return published


def home() -> Path:
    """`$RRG_HF_HOME`, or ~/.cache/rrg_hf."""
    chosen = os.environ.get("RRG_HF_HOME")
    return Path(chosen) if chosen else Path.home() / ".cache" / "rrg_hf"


def prepared_folder(name: str, root: PathLike | None = None) -> Path:
    """Folder that `prepare` makes.

    Args:
        name: a key of `PREPARED`.
        root: default `home()`.
    """
    _published(name)
    return Path(root if root is not None else home()) / "metrics" / name


def preparation(folder: PathLike) -> dict[str, Any] | None:
    """What `prepare` noted in a folder: sources with commits and checksums; None if it is not prepared."""
    try:
        return json.loads((Path(folder) / NOTE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{Path(folder) / NOTE} is damaged. Prepare the folder again with --overwrite.") from error


def require_prepared(name: str, model: PathLike | None = None) -> str:
    """Folder or Hub id to load.

    Args:
        name: a key of `PREPARED`.
        model: a folder or Hub id to take instead of the prepared folder.

    Raises:
        ConfigError: no such folder, or nothing prepared; the message says how to prepare it.
    """
    if model is not None:
        text = os.fspath(model)
        if not Path(text).exists() and not _REPO_ID.fullmatch(text):
            raise ConfigError(f"The model {text!r} is neither a folder here nor a Hub id (owner/name).")
        return text
    folder = prepared_folder(name)
    if preparation(folder) is None:
        raise ConfigError(
            f"{name} is not prepared: there is nothing in {folder}. Run: rrg metrics prepare {name}; or give a folder "
            "or Hub id as model. Where a metric has the backend 'rules', or label_source is 'rules', none are needed."
        )
    return str(folder)


def prepare(
    name: str,
    *,
    from_file: PathLike | Sequence[PathLike] | None = None,
    tokenizer: PathLike | None = None,
    output: PathLike | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Path:
    """Make the folder that a metric loads.

    Args:
        name: a key of `PREPARED`.
        from_file: what to take instead of downloading: the checkpoint or archive; for "ratescore" a folder with "ner"
            and "encoder", or these two folders; for "green" the model's folder, the released prompt archive, or both.
        tokenizer: folder or Hub id of the tokenizer, instead of the published one.
        output: default `prepared_folder(name)`.
        overwrite: replace what is there.
        progress: show bars while downloading.

    Returns:
        The folder. One that is prepared already is returned as it is.

    Raises:
        ConfigError: an unknown name, something in the way, or a file that cannot be downloaded; the message names the
            file and how to bring it by hand.
        DataError: a download with another checksum than published, or a file that cannot be converted.
    """
    published = _published(name)
    folder = Path(output) if output is not None else prepared_folder(name)
    files = _as_paths(from_file)
    for path in files:
        if not path.exists():
            raise ConfigError(f"--from-file {str(path)!r} does not exist.")
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]) and not overwrite:
        if preparation(folder) is not None and not files:
            return folder
        raise ConfigError(f"{folder} is not empty. Choose another folder, or add --overwrite to replace it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, so that the finished folder only has to be renamed
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary, _bars(progress):
        made = Path(temporary) / "made"
        if published.file is not None:
            sources = [_convert(name, published, files, tokenizer, made)]
        else:
            if tokenizer is not None:
                raise ConfigError(f"{name} brings its own tokenizers. Drop --tokenizer.")
            sources = _collect(name, published, files, made)
        _write_note(made, name, published, sources)
        if folder.exists():
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
        made.rename(folder)
    return folder


def _as_paths(from_file: PathLike | Sequence[PathLike] | None) -> list[Path]:
    if from_file is None:
        return []
    if isinstance(from_file, str | os.PathLike):
        return [Path(from_file)]
    return [Path(path) for path in from_file]


def _write_note(folder: Path, name: str, published: Published, sources: list[dict[str, Any]]) -> None:
    from .. import __version__

    note = {"name": name, "sources": sources, "licence": published.licence, "rrg_hf": __version__}
    (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")


def _convert(
    name: str, published: Published, files: list[Path], tokenizer: PathLike | None, made: Path
) -> dict[str, Any]:
    file = published.file
    assert file is not None
    if len(files) > 1:
        raise ConfigError(f"{name} is one file, {file.filename}; {len(files)} were given with --from-file.")
    if files:
        path, commit = files[0], None
    else:
        path, commit = download(name, file)
    digest = file_sha256(path) if path.is_file() else None
    is_published = file.sha256 is None or digest == file.sha256
    if not is_published:
        if not files:
            path.unlink(missing_ok=True)
            raise DataError(
                f"{file.filename} from {file.repo_id} has the SHA-256 {digest}, published is {file.sha256}. Run the "
                "command again; if it stays so, the file on the Hub was replaced."
            )
        logger.warning("%s is not the published %s: its checksum differs.", path.name, file.filename)
    # an archive of one's own says itself which tokenizer it needs
    use_published = tokenizer is None and is_published
    words = published.tokenizer if use_published else tokenizer
    revision = published.tokenizer_revision if use_published else None
    if name == "chexbert" and words is None:
        words = published.tokenizer
    convert = _convert_chexbert if name == "chexbert" else _convert_radgraph
    try:
        convert(name, path, words, revision, made)
    except OSError as error:
        needed = words or "the tokenizer that the archive names"
        raise ConfigError(
            f"{path.name} cannot be converted: {needed} could not be loaded ({_first_line(error)}). Offline, bring "
            f"the tokenizer's folder with its config.json and pass it as --tokenizer FOLDER."
        ) from error
    except ValueError as error:
        raise DataError(f"{path.name} cannot be converted: {error}") from error
    return {
        **{key: value for key, value in asdict(file).items() if key != "size"},
        "commit": commit,
        "from_file": bool(files),
        "sha256": digest,
        "published": is_published if file.sha256 else None,
        "tokenizer": None if words is None else os.fspath(words),
        "tokenizer_revision": revision,
    }


def _convert_chexbert(name: str, path: Path, words: Any, revision: str | None, made: Path) -> None:
    from ..modeling.chexbert.convert_chexbert import convert_chexbert

    convert_chexbert(path, words, made, tokenizer_revision=revision)


def _convert_radgraph(name: str, path: Path, words: Any, revision: str | None, made: Path) -> None:
    from ..modeling.radgraph.convert_radgraph import convert_radgraph

    convert_radgraph(path, words, made, tokenizer_revision=revision)


def _collect(name: str, published: Published, files: list[Path], made: Path) -> list[dict[str, Any]]:
    folders = [path for path in files if path.is_dir()]
    others = [path for path in files if not path.is_dir()]
    if others and name != "green":
        raise ConfigError(f"{name} is made of folders; {others[0].name} is a file.")
    if name == "green":
        from .green_prompt import green_template

        if len(others) > 1:
            raise ConfigError("Give one prompt archive with --from-file.")
        # small and most likely to fail, so first
        green_template(from_file=others[0] if others else None)
    repos = published.repos
    if len(folders) == 1 and len(repos) > 1:
        folders = [folders[0] / repo.folder for repo in repos]
    if folders and len(folders) != len(repos):
        needed = " and ".join(repo.repo_id for repo in repos)
        raise ConfigError(f"{name} needs {needed}: {len(repos)} folders, but {len(folders)} were given.")
    sources = []
    for place, repo in enumerate(repos):
        target = made / repo.folder if repo.folder else made
        if folders:
            _copy(folders[place], target)
            sources.append({"repo_id": repo.repo_id, "commit": None, "from_file": True})
        else:
            sources.append({"repo_id": repo.repo_id, "commit": _snapshot(name, repo, target), "from_file": False})
    if name == "ratescore":
        from .ratescore_folder import check_ratescore_folder

        check_ratescore_folder(made)
    elif not (made / "config.json").is_file():
        raise ConfigError(f"{folders[0] if folders else repos[0].repo_id} has no config.json, so it is no model.")
    return sources


def _copy(source: Path, target: Path) -> None:
    """Files of a folder, as hard links where the disk allows: a judge has 13 GB."""
    if not source.is_dir():
        raise ConfigError(f"There is no folder {str(source)!r}.")
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.name != NOTE:
            real = path.resolve()  # files of a Hub cache are links
            try:
                os.link(real, target / path.name)
            except OSError:
                shutil.copyfile(real, target / path.name)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def _bars(progress: bool) -> Iterator[None]:
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if progress or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def download(name: str, file: PublishedFile) -> tuple[Path, str | None]:
    """The published file in the Hub's cache, and its commit. A broken download is continued where it stopped.

    Args:
        name: what it is prepared as, for messages.
        file: which file.

    Raises:
        ConfigError: it cannot be had; the message says how to bring it by hand.
    """
    from huggingface_hub import hf_hub_download

    size = f" ({file.size / 1e6:,.0f} MB)" if file.size else ""
    by_hand = (
        f"Fetch {file.filename}{size} of {file.repo_id} by hand, from {file.url}, and run: rrg metrics prepare {name} "
        f"--from-file {file.filename}"
    )
    path = Path(_ask_hub(lambda: hf_hub_download(file.repo_id, file.filename, revision=file.revision), by_hand))
    parts = path.parts
    commit = parts[parts.index("snapshots") + 1] if "snapshots" in parts else file.revision
    return path, commit


def _snapshot(name: str, repo: PublishedRepo, target: Path) -> str | None:
    from huggingface_hub import HfApi, snapshot_download

    by_hand = (
        f"Fetch the files of https://huggingface.co/{repo.repo_id}/tree/{repo.revision or 'main'} by hand, and run: "
        f"rrg metrics prepare {name} --from-file FOLDER"
    )
    commit = _ask_hub(lambda: HfApi().model_info(repo.repo_id, revision=repo.revision).sha, by_hand)
    kept = _ask_hub(
        lambda: snapshot_download(repo.repo_id, revision=commit, allow_patterns=list(repo.patterns)), by_hand
    )
    _copy(Path(kept), target)
    return commit


def _ask_hub(call: Callable[[], Any], by_hand: str) -> Any:
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return call()
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, httpx.TransportError) as error:
        raise ConfigError(f"The Hub cannot be reached ({type(error).__name__}). {by_hand}") from error
    except HfHubHTTPError as error:
        raise ConfigError(f"The Hub refused ({type(error).__name__}: {_first_line(error)}). {by_hand}") from error
