"""One tiny PALM, a few phantom studies, and one run of the three stages, shared by the trainer tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from datasets import DatasetDict

from rrg_hf.data.phantom import phantom_splits
from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from rrg_hf.trainers import PalmTrainer, PalmTrainingArguments, load_palm
from rrg_hf.trainers.lead_config import LeadTrainingArguments
from rrg_hf.trainers.lead_loading import load_lead, load_lead_processor
from rrg_hf.trainers.lead_trainer import LeadTrainer
from tests.tiny_lead import make_checkpoint
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


LEAD_SETTINGS: dict[str, Any] = {"expert_hidden_size": 8, "projection_rank": 6, "gate_rank": 4}


@pytest.fixture(scope="session")
def lead_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tiny plain backbones, by family."""
    root = tmp_path_factory.mktemp("backbones")
    return {family: make_checkpoint(family, root / family) for family in ("qwen3_vl", "internvl", "mistral3")}


def lead_args(output_dir: Path | str, **changes: Any) -> LeadTrainingArguments:
    """Settings for a LEAD run of seconds."""
    settings: dict[str, Any] = {
        "max_steps": 3,  # beta's normalisation gets its first gradient at the third
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "generation_max_new_tokens": 6,
        "lora_r": 4,
        "lora_alpha": 8,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return LeadTrainingArguments(str(output_dir), **{**settings, **changes})


class MakeLeadTrainer(Protocol):
    def __call__(self, family: str = "qwen3_vl", **changes: Any) -> LeadTrainer: ...


@pytest.fixture()
def make_lead_trainer(lead_dirs: dict[str, Path], studies: DatasetDict, tmp_path: Path) -> MakeLeadTrainer:
    """Builds a LEAD trainer on a fresh tiny backbone; keywords are training arguments, fields of LeadConfig in `lead`,
    or `model`, `train_dataset`, `eval_dataset`, `callbacks`, `dtype`."""

    def make(family: str = "qwen3_vl", **changes: Any) -> LeadTrainer:
        given = {name: changes.pop(name) for name in ("train_dataset", "eval_dataset", "callbacks") if name in changes}
        given.setdefault("train_dataset", studies["train"])
        source = changes.pop("model", lead_dirs[family])
        lead = {**LEAD_SETTINGS, **changes.pop("lead", {})}
        dtype = changes.pop("dtype", "float32")
        args = lead_args(changes.pop("output_dir", tmp_path / "lead"), **changes)
        torch.manual_seed(0)
        model = load_lead(source, lead, dtype=dtype)
        processor = load_lead_processor(lead_dirs[family], image_size=32)
        return LeadTrainer(model, args, processing_class=processor, **given)

    return make
