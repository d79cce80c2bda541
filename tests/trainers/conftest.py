"""One tiny PALM, a few phantom studies, and one run of the three stages, shared by the trainer tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest
from datasets import DatasetDict

from rrg_hf.data.phantom import phantom_splits
from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from rrg_hf.trainers import PalmTrainer, PalmTrainingArguments, load_palm
from tests.tiny_palm import make_tiny_palm


@pytest.fixture(scope="session")
def palm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny PALM that has finished no stage."""
    path = tmp_path_factory.mktemp("palm")
    make_tiny_palm(path)
    return path


@pytest.fixture(scope="session")
def processor(palm_dir: Path) -> PalmProcessor:
    return PalmProcessor.from_pretrained(palm_dir)


@pytest.fixture(scope="session")
def studies() -> DatasetDict:
    return phantom_splits({"train": 12, "validation": 5}, size=64, masks=())


@pytest.fixture(scope="session")
def studies_dir(studies: DatasetDict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("studies")
    studies.save_to_disk(path)
    return path


@pytest.fixture()
def palm(palm_dir: Path) -> PalmForReportGeneration:
    """A fresh copy for a test that trains."""
    return load_palm(palm_dir)


def tiny_args(output_dir: Path | str, stage: str, **changes: Any) -> PalmTrainingArguments:
    """Settings for a run of seconds: a high learning rate, because the gradients of a random model are tiny."""
    settings: dict[str, Any] = {
        "max_steps": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "logging_steps": 1,
        "generation_max_new_tokens": 8,
        "save_strategy": "no",
        "disable_tqdm": True,
        "skip_stages": [name for name in ("mem", "align") if name != stage],
    }
    return PalmTrainingArguments(str(output_dir), stage=stage, **{**settings, **changes})


class MakeTrainer(Protocol):
    def __call__(self, stage: str, **changes: Any) -> PalmTrainer: ...


@pytest.fixture()
def make_trainer(palm_dir: Path, processor: PalmProcessor, studies: DatasetDict, tmp_path: Path) -> MakeTrainer:
    """Builds a trainer on a fresh tiny model; keywords are training arguments, or `model`, `train_dataset`, ..."""

    def make(stage: str, **changes: Any) -> PalmTrainer:
        given = {
            name: changes.pop(name)
            for name in ("model", "train_dataset", "eval_dataset", "callbacks")
            if name in changes
        }
        given.setdefault("train_dataset", studies["train"])
        model = given.pop("model", None) or load_palm(palm_dir)
        args = tiny_args(changes.pop("output_dir", tmp_path / stage), stage, **changes)
        return PalmTrainer(model, args, processing_class=processor, **given)

    return make
