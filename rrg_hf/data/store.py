"""Saving, loading and checking data sets of `Study` rows, and splitting them by patient.

On disk a data set is a `datasets.DatasetDict` folder (`save_to_disk`), so `load_from_disk`, `push_to_hub`,
`to_iterable_dataset()` and streaming from parquet work without this package.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from datasets import (
    Dataset,
    DatasetDict,
    Features,
    Image,
    IterableDataset,
    IterableDatasetDict,
    List,
    Value,
    load_dataset,
    load_from_disk,
)
from datasets.arrow_writer import ArrowWriter
from pyarrow import ArrowException

from ..errors import DataError
from .study import study_features

PHANTOM = "phantom"
_BATCH = 16  # rows in memory while writing; a study's pictures can be 10 MB
DEFAULT_FRACTIONS: dict[str, float] = {"train": 0.7, "validation": 0.1, "test": 0.2}

Row = TypeVar("Row", bound=Mapping[str, Any])
AnyDataset = Dataset | DatasetDict | IterableDataset | IterableDatasetDict


def write_rows(rows: Iterable[Mapping[str, Any]], file: str | os.PathLike[str]) -> Dataset:
    """Write rows one after the other into an Arrow file, so that images never pile up in memory.

    Args:
        rows: `Study` rows; images and masks as PIL images, arrays or {"bytes", "path"} structs.
        file: the Arrow file to create.

    Returns:
        The memory-mapped data set. With no rows at all, an empty one.

    Raises:
        DataError: a row does not fit the schema (the message names its study id), or the file cannot be written.
    """
    features = study_features()
    count = 0
    pending: list[str] = []  # ids of the rows in the writer's buffer, which it checks together

    def checked(action: Callable[[], Any]) -> None:
        try:
            action()
        except (ArrowException, TypeError, ValueError, KeyError) as error:
            who = "Study" if len(pending) == 1 else "One of the studies"
            raise DataError(
                f"{who} {', '.join(map(repr, pending))} does not fit the Study schema ({type(error).__name__}). "
                "See rrg_hf.data.study for the types of its columns."
            ) from error

    with _writing(Path(file)), ArrowWriter(features=features, path=str(file), writer_batch_size=_BATCH) as writer:
        for row in rows:
            missing = [column for column in features if column not in row]
            if missing:
                raise DataError(
                    f"Study {row.get('study_id')!r} lacks the columns {missing}. Fill them, with None if unknown."
                )
            if count % _BATCH == 0:
                pending.clear()
            pending.append(str(row["study_id"]))
            checked(lambda row=row: writer.write(features.encode_example(dict(row))))  # type: ignore[misc]
            count += 1
        if count:
            checked(writer.finalize)
    if count:
        return Dataset.from_file(str(file))
    return Dataset.from_dict({column: [] for column in features}, features=features)


def save_studies(
    studies: DatasetDict,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Save a data set as one step: the folder is complete, or it is not there.

    Args:
        studies: splits of `Study` rows. They must share no study id and no patient, and must not mix phantoms with
            real studies.
        path: the folder to create.
        overwrite: replace a folder that holds a saved data set. Any other folder is never replaced.
        files: further text files to put into the folder, name to content.

    Returns:
        The folder.

    Raises:
        DataError: wrong columns, repeated study ids, a patient in two splits, mixed worlds, no rows, or the folder
            exists and may not be replaced.
            Also when the disk is full or cannot be written: nothing is left behind and an old data set stays.
    """
    target = Path(path)
    check_target(target, overwrite=overwrite)
    checked = DatasetDict({name: check_schema(split, f"split {name!r}") for name, split in studies.items()})
    if sum(len(split) for split in checked.values()) == 0:
        raise DataError("There is no study to save: every split is empty.")
    check_single_world(checked)
    check_splits(checked)
    with _writing(target), _replacing(target) as scratch:
        checked.save_to_disk(str(scratch))
        for name, content in (files or {}).items():
            (scratch / name).write_text(content, encoding="utf-8")
    return target


def check_target(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Tell before any work whether `save_studies` may write to a folder.

    Raises:
        DataError: it exists and may not be replaced, or its parent is not a folder.
    """
    target = Path(path)
    for parent in target.absolute().parents:
        if parent.exists():
            if not parent.is_dir():
                raise DataError(f"{target}: {parent} is a file, so no folder can be made below it.")
            break
    if not target.exists() and not target.is_symlink():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not target.is_dir() or target.is_symlink() or not _is_saved_dataset(target):
        raise DataError(f"{target}: exists and is not a saved data set, so it is not replaced. Choose another folder.")
    if not overwrite:
        raise DataError(
            f"{target}: a data set is already there. Choose another folder, or pass overwrite (--overwrite)."
        )


def _is_saved_dataset(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(
            f"{target}: cannot be written ({reason}). Nothing was left behind. Free space or choose another folder."
        ) from error


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A scratch folder beside `target`: it takes its place when the block ends well, and vanishes when it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        scratch, old = holder / "new", holder / "old"
        scratch.mkdir()
        yield scratch
        # Two renames: for an instant no folder is there, but never half a one.
        if target.exists():
            target.rename(old)
        try:
            scratch.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    finally:
        shutil.rmtree(holder, ignore_errors=True)


@overload
def load_studies(
    source: str | os.PathLike[str],
    split: None = None,
    *,
    streaming: Literal[False] = False,
    revision: str | None = None,
) -> DatasetDict: ...


@overload
def load_studies(
    source: str | os.PathLike[str], split: str, *, streaming: Literal[False] = False, revision: str | None = None
) -> Dataset: ...


@overload
def load_studies(
    source: str | os.PathLike[str],
    split: str | None = None,
    *,
    streaming: Literal[True],
    revision: str | None = None,
) -> Any: ...


def load_studies(
    source: str | os.PathLike[str],
    split: str | None = None,
    *,
    streaming: bool = False,
    revision: str | None = None,
) -> Any:
    """Load `Study` rows from a `save_to_disk` folder, from local parquet files, or from the Hub.

    Args:
        source: a folder, or a Hub data set id such as "name/chest-studies".
        split: the split to return; None returns all of them.
        streaming: iterate without loading (`IterableDataset`).
        revision: a Hub branch, tag or commit.

    Returns:
        `DatasetDict`, or `Dataset` for one split; the iterable kinds when streaming.

    Raises:
        DataError: nothing there, no such split, or columns that are not those of `rrg_hf.data.study.study_features`;
            the message names the missing and wrong columns.
    """
    name = os.fspath(source)
    folder = Path(name)
    if folder.is_file():
        raise DataError(f"{name}: is a file. Give the folder of a saved data set, or a Hub data set id.")
    if folder.is_dir() and _is_saved_dataset(folder):
        try:
            loaded: Any = load_from_disk(name)
        except Exception as error:  # pyarrow, json and fsspec each raise their own on a damaged folder
            raise DataError(
                f"{name}: the saved data set is damaged ({type(error).__name__}). Build it again."
            ) from error
        if isinstance(loaded, Dataset):
            loaded = DatasetDict({str(loaded.split or "train"): loaded})
        if streaming:
            loaded = IterableDatasetDict({key: part.to_iterable_dataset() for key, part in loaded.items()})
    else:
        if not folder.exists() and (folder.is_absolute() or name.count("/") > 1 or name.startswith(".")):
            raise DataError(f"{name}: no such folder. Give the folder of a saved data set, or a Hub data set id.")
        try:
            loaded = load_dataset(name, revision=revision, streaming=streaming)
        except Exception as error:  # hub, network, parquet: each raises its own
            reason = (str(error).splitlines() or [""])[0][:200]
            raise DataError(
                f"{name}: is neither a saved data set nor one that the Hub gives ({type(error).__name__}: {reason})."
            ) from error
    if split is not None:
        if split not in loaded:
            raise DataError(f"{name}: has no split {split!r}. It has: {', '.join(map(str, loaded))}.")
        return check_schema(loaded[split], f"{name}, split {split!r}")
    kind = IterableDatasetDict if streaming else DatasetDict
    return kind({key: check_schema(part, f"{name}, split {key!r}") for key, part in loaded.items()})


def check_schema(dataset: Any, name: str) -> Any:
    """Check that a `Dataset` or `IterableDataset` has the columns of a `Study`; extra columns are allowed.

    Columns of the same storage but another reading (for instance images that came from plain parquet as
    {bytes, path} structs) are cast.

    Returns:
        The data set, cast where needed.

    Raises:
        DataError: missing or wrong columns, named with what they are and should be.
    """
    expected = study_features()
    found: Features | None = getattr(dataset, "features", None)
    if found is None:
        raise DataError(
            f"{name}: its columns are not known before reading it. Save it as parquet or with save_to_disk."
        )
    missing = [column for column in expected if column not in found]
    wrong, recast = [], {}
    for column, feature in expected.items():
        if column in missing or _describe(found[column]) == _describe(feature):
            continue
        if _storage(found[column]) == _storage(feature):
            recast[column] = feature
        else:
            wrong.append(f"{column} is {_describe(found[column])}, should be {_describe(feature)}")
    if missing or wrong:
        parts = [f"missing columns: {', '.join(missing)}"] if missing else []
        parts += [f"wrong columns: {'; '.join(wrong)}"] if wrong else []
        raise DataError(
            f"{name}: these are not Study rows ({'. '.join(parts)}). "
            "Build the data set with `rrg data ...`, or cast it to rrg_hf.data.study.study_features()."
        )
    if not recast:
        return dataset
    return dataset.cast(Features({**found, **recast}))


def _describe(feature: Any) -> str:
    """A feature in words, without what does not change its meaning (image decoding, 64-bit string offsets)."""
    if isinstance(feature, Image):
        return "Image"
    if isinstance(feature, Value):
        return str(feature.dtype).replace("large_string", "string")
    if isinstance(feature, List):
        length = f", {feature.length}" if feature.length != -1 else ""
        return f"List({_describe(feature.feature)}{length})"
    if isinstance(feature, dict):
        return "{" + ", ".join(f"{key}: {_describe(feature[key])}" for key in sorted(feature)) + "}"
    return type(feature).__name__


def _storage(feature: Any) -> Any:
    return Features({"column": feature}).arrow_schema.field("column").type


def check_single_world(*datasets: Dataset | DatasetDict) -> str:
    """Refuse phantoms and real studies in one place. Call it wherever data sets are combined.

    Returns:
        "phantom" or "real".

    Raises:
        DataError: both kinds are there, or a row names no source.
    """
    sources: set[str] = set()
    for dataset in datasets:
        parts = dataset.values() if isinstance(dataset, DatasetDict) else [dataset]
        for part in parts:
            sources.update(part.unique("source") if len(part) else [])
    if None in sources or "" in sources:
        raise DataError(
            "Some rows name no source. Fill the column `source`, so that phantoms cannot pass for patients."
        )
    if PHANTOM in sources and len(sources) > 1:
        others = sorted(sources - {PHANTOM})
        raise DataError(
            f"Phantom studies are mixed with real ones ({', '.join(others)}). "
            "Scores over both mean nothing: keep them in data sets of their own."
        )
    return PHANTOM if PHANTOM in sources else "real"


def check_splits(studies: DatasetDict) -> None:
    """Refuse repeated study ids, and patients that appear in more than one split.

    Raises:
        DataError: naming the first ids.
    """
    seen: dict[str, str] = {}
    patients: dict[str, str] = {}
    repeated: list[str] = []
    shared: list[str] = []
    for name, split in studies.items():
        columns = split.select_columns(["study_id", "patient_id"])
        for study_id, patient_id in zip(columns["study_id"], columns["patient_id"], strict=True):
            if not study_id or not patient_id:
                raise DataError(f"Split {name!r} has rows without a study_id or patient_id. Fill both columns.")
            if study_id in seen:
                repeated.append(study_id)
            seen[study_id] = name
            if patients.setdefault(patient_id, name) != name:
                shared.append(patient_id)
    if repeated:
        raise DataError(
            f"{len(repeated)} study ids are repeated: {_first(repeated)}. Give every study an id of its own."
        )
    if shared:
        raise DataError(
            f"{len(set(shared))} patients are in more than one split: {_first(shared)}. Split by patient "
            "(rrg_hf.data.store.split_by_patient), or scores on the test split mean nothing."
        )


def _first(ids: Sequence[str], count: int = 5) -> str:
    unique = list(dict.fromkeys(ids))
    return ", ".join(unique[:count]) + (" ..." if len(unique) > count else "")


def split_of_patient(patient_id: str, fractions: Mapping[str, float] = DEFAULT_FRACTIONS, seed: int = 0) -> str:
    """The split of one patient, from a hash of seed and id: other patients, order and process do not matter.

    Args:
        patient_id: any non-empty id.
        fractions: split name to share; the shares sum to 1. Shares hold on average, not exactly.
        seed: another seed gives another split.

    Raises:
        DataError: no id, or fractions that are negative or do not sum to 1.
    """
    if not patient_id:
        raise DataError("A study has no patient_id, so it cannot be put into a split. Fill the column patient_id.")
    if (
        not fractions
        or any(not math.isfinite(share) or share < 0 for share in fractions.values())
        or abs(sum(fractions.values()) - 1) > 1e-6
    ):
        raise DataError(f"The fractions {dict(fractions)} are not shares of 1. Give for instance {DEFAULT_FRACTIONS}.")
    digest = hashlib.sha256(f"{seed}:{patient_id}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    bound = 0.0
    filled = [name for name, share in fractions.items() if share > 0]
    for name in filled:
        bound += fractions[name]
        if place < bound:
            return name
    return filled[-1]  # rounding of the sum


def split_by_patient(
    rows: Iterable[Row], fractions: Mapping[str, float] = DEFAULT_FRACTIONS, seed: int = 0
) -> dict[str, list[Row]]:
    """Distribute rows over splits so that no patient is in two of them.

    Args:
        rows: mappings with a `patient_id`.
        fractions, seed: see `split_of_patient`.

    Returns:
        Every split name of `fractions` to its rows, in their order. A row's own `split` value is not changed.
    """
    result: dict[str, list[Row]] = {name: [] for name in fractions}
    for row in rows:
        result[split_of_patient(str(row.get("patient_id") or ""), fractions, seed)].append(row)
    return result
