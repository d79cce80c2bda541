"""PalmTrainingArguments: the paper's defaults, and settings that cannot work refused before compute."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import HfArgumentParser

from rrg_hf.errors import ConfigError
from rrg_hf.trainers import PalmTrainingArguments


def make(tmp_path: Path, **settings: Any) -> PalmTrainingArguments:
    return PalmTrainingArguments(str(tmp_path), use_cpu=True, **settings)


@pytest.mark.parametrize(("stage", "rate"), [("mem", 1e-5), ("align", 1e-5), ("generate", 5e-5)])
def test_learning_rate_follows_the_paper(tmp_path: Path, stage: str, rate: float) -> None:
    args = make(tmp_path, stage=stage)
    assert args.learning_rate == rate
    assert args.per_device_train_batch_size == 8
    assert "adamw" in args.optim
    assert make(tmp_path, stage=stage, learning_rate=3e-4).learning_rate == 3e-4


def test_generate_keeps_the_best_clinical_f1_by_default(tmp_path: Path) -> None:
    args = make(tmp_path, stage="generate")
    assert (args.load_best_model_at_end, args.metric_for_best_model, args.greater_is_better) == (
        True,
        "rules_micro_f1",
        True,
    )
    assert args.eval_strategy == args.save_strategy == "epoch"
    mem = make(tmp_path, stage="mem")
    assert not mem.load_best_model_at_end and mem.metric_for_best_model is None
    stopping = make(tmp_path, stage="align", early_stopping_patience=2)
    assert (stopping.load_best_model_at_end, stopping.metric_for_best_model, stopping.greater_is_better) == (
        True,
        "loss",
        False,
    )


def test_evaluation_follows_the_save_strategy(tmp_path: Path) -> None:
    args = make(tmp_path, stage="generate", save_strategy="steps", save_steps=7)
    assert args.eval_strategy == "steps" and args.eval_steps == 7


def test_nothing_leaves_the_machine_by_default(tmp_path: Path) -> None:
    args = make(tmp_path)
    assert args.report_to == [] and args.log_reports == 0
    assert args.hub_private_repo is True and args.trackio_space_id is None and args.trackio_static_space_id is False


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stage": "memm"}, "Did you mean 'mem'"),
        ({"stage": "align", "skip_stages": ["align"]}, "remove one of the two"),
        ({"skip_stages": ["pretrain"]}, "the stages are"),
        ({"section": "findngs"}, "findings, impression"),
        ({"max_report_length": 2}, "at least 3 tokens"),
        ({"generation_num_beams": 0}, "at least 1"),
        ({"eval_generate_samples": -1}, "at least 0"),
        ({"early_stopping_patience": 0}, "at least 1"),
        ({"early_stopping_patience": 1, "eval_strategy": "no"}, "needs evaluations"),
        ({"remove_unused_columns": True}, "must stay False"),
        ({"label_smoothing_factor": 0.1}, "not supported"),
        ({"deepspeed": "zero2.json"}, "deepspeed, fsdp and parallelism_config"),
        ({"log_reports": 3}, "report_to"),
        ({"stage": "mem", "metric_for_best_model": "rules_micro_f1"}, "writes no reports"),
        ({"stage": "generate", "eval_generate_samples": 0, "metric_for_best_model": "rules_micro_f1"}, "is 0"),
        ({"stage": "generate", "eval_strategy": "epoch", "save_strategy": "steps"}, "Set them equal"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, not 'fast'"),
        ({"seed": None}, "seed is empty"),
        ({"max_steps": 0}, "at least 1, or -1"),
        ({"max_steps": -5}, "at least 1, or -1"),
        ({"num_train_epochs": 0}, "trains nothing"),
        ({"adam_beta2": 1.0}, "adam_beta2 is 1.0; it must lie between 0 and 1"),
        ({"save_steps": 0}, "save_steps is 0.0; it must be a finite number above 0"),
        ({"save_total_limit": 0}, "save_total_limit is 0"),
        ({"dataloader_num_workers": -1}, "dataloader_num_workers is -1"),
        ({"max_grad_norm": -1.0}, "max_grad_norm"),
        ({"cleaning": "soap"}, "cleaning is 'soap'; there are default"),
        ({"cleaning": ["default"]}, "cleaning must be a text"),
        ({"log_level": "loud"}, "log_level is 'loud'; choose one of"),
        ({"train_sampling_strategy": "randm"}, "Did you mean 'random'"),
        ({"parallelism_config": 3}, "which only Python can make"),
        ({"greater_is_better": "maybe"}, "greater_is_better must be true or false"),
        ({"stage": "generate", "metric_for_best_model": "rules_micro_f"}, "Did you mean 'rules_micro_f1'"),
        ({"stage": "mem", "metric_for_best_model": "gen_loss"}, "stage mem does not log"),
        ({"report_to": "trackioo"}, "Did you mean 'trackio'"),
        ({"report_to": ["none", 3]}, "report_to must be a text or a list of texts"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(tmp_path, **settings)


def test_the_best_of_several_validation_sets_may_be_asked_for(tmp_path: Path) -> None:
    args = make(tmp_path, stage="generate", metric_for_best_model="eval_iu_rules_micro_f1")
    assert args.metric_for_best_model == "eval_iu_rules_micro_f1"


def test_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"stages\.mem has no setting 'lerning_rate' \(did you mean 'learning_rate'\?\)"
    ):
        PalmTrainingArguments.from_mapping({"output_dir": str(tmp_path), "lerning_rate": 1}, where="stages.mem")


def test_numbers_written_as_text_are_converted(tmp_path: Path) -> None:
    args = PalmTrainingArguments.from_mapping(
        {
            "output_dir": str(tmp_path),
            "learning_rate": "1e-4",
            "max_steps": 3.0,
            "skip_stages": "align",
            "use_cpu": True,
        }
    )
    assert args.learning_rate == 1e-4
    assert args.max_steps == 3 and isinstance(args.max_steps, int)
    assert args.skip_stages == ["align"]


@pytest.mark.parametrize(
    ("name", "value"), [("num_train_epochs", "many"), ("max_steps", 1.5), ("use_indication", "maybe"), ("seed", True)]
)
def test_values_of_the_wrong_type_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"training\.{name} must be"):
        PalmTrainingArguments.from_mapping({"output_dir": str(tmp_path), name: value})


def test_values_that_transformers_refuses_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training: .*IntervalStrategy|training: .*sometimes"):
        PalmTrainingArguments.from_mapping({"output_dir": str(tmp_path), "eval_strategy": "sometimes"})


def test_works_with_the_argument_parser_of_transformers(tmp_path: Path) -> None:
    (args,) = HfArgumentParser(PalmTrainingArguments).parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--stage", "align", "--use_cpu", "--learning_rate", "0.1"]
    )
    assert (args.stage, args.learning_rate) == ("align", 0.1)


def test_a_copy_keeps_every_value(tmp_path: Path) -> None:
    args = make(tmp_path, stage="generate", early_stopping_patience=2)
    assert dataclasses.replace(args).to_dict() == args.to_dict()


def test_vision_learning_rate_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 0"):
        PalmTrainingArguments(str(tmp_path), stage="align", vision_learning_rate=-1e-5, use_cpu=True)
    with pytest.raises(ConfigError, match="would freeze the vision tower"):
        PalmTrainingArguments(str(tmp_path), stage="mem", vision_learning_rate=0.0, use_cpu=True)


def test_a_process_may_get_a_batch_without_indications(tmp_path: Path) -> None:
    """Its text encoder then has no gradient, which DDP must expect."""
    assert PalmTrainingArguments(str(tmp_path), stage="generate", use_cpu=True).ddp_find_unused_parameters is True
    alone = PalmTrainingArguments(str(tmp_path), stage="generate", use_cpu=True, use_indication=False)
    assert alone.ddp_find_unused_parameters is False
    chosen = PalmTrainingArguments(str(tmp_path), stage="generate", use_cpu=True, ddp_find_unused_parameters=False)
    assert chosen.ddp_find_unused_parameters is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", float("inf")),
        ("learning_rate", -1.0),
        ("learning_rate", "abc"),
        ("num_train_epochs", float("nan")),
        ("weight_decay", -0.1),
        ("per_device_train_batch_size", 0),
        ("gradient_accumulation_steps", 0),
        ("seed", -1),
    ],
)
def test_numbers_that_cannot_work_are_named(name: str, value: object, tmp_path: Path) -> None:
    values = {"output_dir": str(tmp_path), "stage": "align", "use_cpu": True, name: value}
    with pytest.raises(ConfigError, match=name):
        PalmTrainingArguments.from_mapping(values)
