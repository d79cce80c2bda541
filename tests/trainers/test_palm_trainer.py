"""PalmTrainer: every stage trains what it should, logs its losses, scores its reports and saves a PALM model."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForImageTextToText, BertConfig, BertModel, TrainerCallback, TrainingArguments

import rrg_hf  # noqa: F401  (registers the Auto classes)
from rrg_hf.data.pixel_cache import cache_pixel_values
from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from rrg_hf.observations import OBSERVATIONS, LabelState
from rrg_hf.text.rules import label_report
from rrg_hf.trainers import PalmTrainer, load_palm
from rrg_hf.trainers.callbacks import read_train_log

from .conftest import MakeTrainer, tiny_args

LOSSES = {"mem": ["mem_loss"], "align": ["multi_loss", "uni_loss"], "generate": ["gen_loss"]}
STAGES = list(LOSSES)


def weights(palm: PalmForReportGeneration) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in palm.named_parameters()}


def has_no_effect(name: str) -> bool:
    """A bias of attention keys moves every score of a query alike, so softmax gives it no gradient but rounding."""
    return name.endswith((".key.bias", ".k_proj.bias"))


@pytest.mark.parametrize("stage", STAGES)
def test_every_trained_parameter_moves_and_every_frozen_one_stays(stage: str, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(stage, max_steps=3)
    before = weights(trainer.palm)
    own = {name: value.clone() for name, value in trainer.model.named_parameters() if name.startswith("predictor.")}
    teacher = [value.clone() for value in trainer.model.teacher.parameters()] if stage == "mem" else []
    trainer.train()
    for name, weight in trainer.palm.named_parameters():
        if has_no_effect(name):
            continue
        assert torch.equal(weight, before[name]) != weight.requires_grad, name
    trained = {name for name, weight in trainer.palm.named_parameters() if weight.requires_grad}
    assert trained and trained < set(before)
    if stage == "mem":
        assert own and all(
            not torch.equal(value, own[name])
            for name, value in trainer.model.named_parameters()
            if name in own and not has_no_effect(name)
        )
        assert all(map(torch.equal, teacher, trainer.model.teacher.parameters()))


@pytest.mark.parametrize("stage", ["align", "generate"])
def test_a_vision_learning_rate_of_zero_freezes_the_tower(stage: str, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(stage, max_steps=2, vision_learning_rate=0.0)
    before = weights(trainer.palm)
    trainer.train()
    for name, weight in trainer.palm.named_parameters():
        if not has_no_effect(name):
            assert torch.equal(weight, before[name]) != weight.requires_grad, name
    assert not any(weight.requires_grad for weight in trainer.palm.model.vision_model.parameters())


@pytest.mark.parametrize("stage", STAGES)
def test_the_vision_tower_can_have_its_own_learning_rate(stage: str, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(stage, max_steps=2, learning_rate=1e-2, vision_learning_rate=1e-4, warmup_steps=0)
    optimizer = trainer.create_optimizer()
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    tower = {id(weight) for weight in trainer.palm.model.vision_model.parameters()}
    trained = {id(weight) for weight in trainer.model.parameters() if weight.requires_grad}
    assert rates.keys() == trained  # each trained weight once
    assert all(rate == (1e-4 if weight in tower else 1e-2) for weight, rate in rates.items())
    decays = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    plain = make_trainer(stage, max_steps=2, learning_rate=1e-2)
    assert sorted(decays.values()) == sorted(
        group["weight_decay"] for group in plain.create_optimizer().param_groups for _ in group["params"]
    )


@pytest.mark.parametrize("stage", STAGES)
def test_losses_are_logged_by_name(
    stage: str, make_trainer: MakeTrainer, studies: DatasetDict, tmp_path: Path
) -> None:
    trainer = make_trainer(stage, eval_dataset=studies["validation"], eval_strategy="steps", eval_steps=2)
    trainer.train()
    lines = read_train_log(tmp_path / stage)
    training = [line for line in lines if "loss" in line]
    validation = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in training] == [1, 2] and len(validation) == 1
    for name in LOSSES[stage]:
        assert all(math.isfinite(line[name]) for line in training)
        assert math.isfinite(validation[0][f"eval_{name}"])
    for line, prefix in [(training[0], ""), (validation[0], "eval_")]:
        parts = sum(line[f"{prefix}{name}"] for name in LOSSES[stage])
        assert parts == pytest.approx(line[f"{prefix}loss"], rel=1e-4)
    assert {line["stage"] for line in lines} == {stage}


def test_contrastive_ablation(palm: PalmForReportGeneration, make_trainer: MakeTrainer) -> None:
    palm.config.alignment = "contrastive"
    trainer = make_trainer("align", model=palm, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["contrastive_loss"] == pytest.approx(trainer.state.log_history[0]["loss"])


@pytest.fixture(scope="module")
def three_stages(
    palm_dir: Path, processor: PalmProcessor, studies: DatasetDict, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Folder with mem, align and generate, each trained from the one before without skipping."""
    root = tmp_path_factory.mktemp("stages")
    start = palm_dir
    for stage in STAGES:
        args = tiny_args(root / stage, stage, skip_stages=[], save_strategy="steps", save_steps=1)
        trainer = PalmTrainer(
            start, args, studies["train"], studies["validation"], PalmProcessor.from_pretrained(start)
        )
        trainer.train()
        trainer.save_model()
        start = root / stage
    return root


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_ends_in_a_palm_model(stage: str, three_stages: Path, processor: PalmProcessor) -> None:
    folder = three_stages / stage
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert type(model) is PalmForReportGeneration and model.config.training_stage == stage
    assert PalmProcessor.from_pretrained(folder).tokenizer.get_vocab() == processor.tokenizer.get_vocab()
    assert "use_cache" not in json.loads((folder / "config.json").read_text())
    before = STAGES[STAGES.index(stage) - 1] if stage != "mem" else None
    assert load_palm(folder / "checkpoint-1").config.training_stage == before, "an unfinished stage does not count"
    assert not [path for path in folder.rglob("*") if path.name.startswith("tmp-")]


def test_metadata_tells_the_run_and_no_text(three_stages: Path, studies: DatasetDict) -> None:
    text = (three_stages / "generate" / "rrg_training.json").read_text()
    metadata = json.loads(text)
    assert (metadata["stage"], metadata["finished"], metadata["seed"], metadata["phantom"]) == (
        "generate",
        True,
        42,
        True,
    )
    assert metadata["datasets"]["train_dataset"] == {
        "rows": 12,
        "dropped": {},
        "sources": ["phantom"],
        "fingerprint": studies["train"]._fingerprint,
    }
    assert metadata["previous_stage"]["stage"] == "align"
    assert metadata["previous_stage"]["previous_stage"]["stage"] == "mem"
    assert metadata["versions"]["transformers"] and metadata["hyperparameters"]["learning_rate"] == 1e-2
    assert str(three_stages) not in text, "no path of this machine"
    state = (three_stages / "generate" / "trainer_state.json").read_text()
    assert str(three_stages) not in state and len(json.loads(state)["log_history"]) >= 4
    sentence = studies["train"][0]["findings"].split(".")[0]
    assert all(
        sentence not in path.read_text() for path in three_stages.rglob("*.json*") if "tokenizer" not in path.name
    )


def test_the_encoder_of_one_stage_reaches_the_next(three_stages: Path) -> None:
    mem, align = (load_palm(three_stages / stage) for stage in ("mem", "align"))
    vision = "model.vision_model.layernorm.weight"
    assert not torch.equal(mem.state_dict()[vision], align.state_dict()[vision])
    decoder = "model.decoder.h.0.ln_1.weight"
    assert torch.equal(mem.state_dict()[decoder], align.state_dict()[decoder])


def test_reports_are_scored_during_evaluation(make_trainer: MakeTrainer, studies: DatasetDict) -> None:
    """The score is micro-F1 of rule labels over the whole references, counted here by hand."""
    trainer = make_trainer("generate", eval_dataset=studies["validation"])
    reports = iter([])

    def write(ids: torch.Tensor, **kwargs: Any) -> list[str]:
        return [next(reports) for _ in range(len(ids))]

    texts = [row["findings"] for row in studies["validation"]]
    written = [texts[0], texts[0], "There is a large pleural effusion.", "Clear lungs.", texts[4]]
    reports = iter(written)
    trainer._processor = type("Stub", (), {"batch_decode": staticmethod(write)})()
    scores = trainer.evaluate()

    positive = {LabelState.POSITIVE, LabelState.UNCERTAIN}
    tp = fp = fn = 0
    for reference, report in zip(texts, written, strict=True):
        truth, claim = label_report(reference), label_report(report)
        for name in OBSERVATIONS:
            tp += truth[name] in positive and claim[name] in positive
            fp += truth[name] not in positive and claim[name] in positive
            fn += truth[name] in positive and claim[name] not in positive
    assert tp and fp and fn
    assert scores["eval_rules_micro_f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert scores["eval_generated_reports"] == 5
    assert scores["eval_distinct_reports"] == pytest.approx(4 / 5)


def test_references_are_never_cut(make_trainer: MakeTrainer, studies: DatasetDict) -> None:
    trainer = make_trainer("generate", eval_dataset=studies["validation"], max_report_length=8)
    rows = trainer.generate_reports(trainer.eval_dataset, max_samples=2)
    assert [row["reference"] for row in rows] == [studies["validation"][index]["findings"] for index in (0, 4)]
    assert len(trainer.data_collator([trainer.eval_dataset[0]])["labels"][0]) == 8


def test_the_best_clinical_f1_is_kept(make_trainer: MakeTrainer, studies: DatasetDict, tmp_path: Path) -> None:
    trainer = make_trainer(
        "generate", eval_dataset=studies["validation"], max_steps=4, save_strategy="steps", save_steps=1
    )
    scores = iter([0.2, 0.9, 0.5, 0.4])
    trainer._score_reports = lambda dataset: {"rules_micro_f1": next(scores)}  # type: ignore[method-assign]
    trainer.train()
    assert trainer.state.best_metric == 0.9 and trainer.state.best_global_step == 2
    assert sorted(path.name for path in (tmp_path / "generate").glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-4",
    ]
    best = load_palm(tmp_path / "generate" / "checkpoint-2").state_dict()
    assert all(torch.equal(value, best[name]) for name, value in trainer.palm.state_dict().items())
    trainer.save_model()
    assert json.loads((tmp_path / "generate" / "rrg_training.json").read_text())["best_metric"] == 0.9


def test_early_stopping(make_trainer: MakeTrainer, studies: DatasetDict) -> None:
    trainer = make_trainer(
        "generate",
        eval_dataset=studies["validation"],
        max_steps=9,
        save_strategy="steps",
        save_steps=1,
        early_stopping_patience=2,
    )
    scores = iter([0.5, 0.6, 0.6, 0.1, 0.9])
    trainer._score_reports = lambda dataset: {"rules_micro_f1": next(scores)}  # type: ignore[method-assign]
    trainer.train()
    assert trainer.state.global_step == 4


def test_evaluating_does_not_change_training(make_trainer: MakeTrainer, studies: DatasetDict, tmp_path: Path) -> None:
    results = []
    for name, changes in {
        "often": {"eval_strategy": "steps", "eval_steps": 1},
        "never": {"eval_strategy": "no"},
    }.items():
        trainer = make_trainer(
            "generate", eval_dataset=studies["validation"], max_steps=3, output_dir=tmp_path / name, **changes
        )
        trainer.train()
        results.append(weights(trainer.palm))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def without_dropout(palm: PalmForReportGeneration) -> PalmForReportGeneration:
    for module in palm.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return palm


@pytest.mark.parametrize("stage", ["generate", "mem"])
def test_accumulated_batches_equal_one_large_batch(stage: str, make_trainer: MakeTrainer, palm_dir: Path) -> None:
    """Reports differ in length, so a mean of batch means would differ from the mean over all tokens."""
    mask = torch.arange(16) % 3 == 0
    results = []
    for size, steps in ((12, 1), (3, 4)):
        model = without_dropout(load_palm(palm_dir))
        trainer = make_trainer(
            stage,
            model=model,
            max_steps=1,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            optim="sgd",
            max_grad_norm=0.0,
            learning_rate=0.1,
        )
        if stage == "mem":  # one mask for all, since each batch draws its own
            forward = trainer.model.forward
            trainer.model.forward = lambda pixel_values, forward=forward: forward(
                pixel_values, patch_mask=mask.expand(len(pixel_values), -1)
            )
        if size == 12:
            with torch.no_grad():
                rows = [trainer.train_dataset[index] for index in range(12)]
                expected = trainer.model(**trainer.data_collator(rows)).loss.item()
        trainer.train()
        results.append((weights(trainer.palm), trainer.state.log_history[0]))
    (one, one_log), (many, many_log) = results
    assert max((one[name] - many[name]).abs().max().item() for name in one) < 1e-6
    assert max((one[name] - start).abs().max().item() for name, start in weights(load_palm(palm_dir)).items()) > 1e-4
    for name in ("loss", *LOSSES[stage]):
        assert one_log[name] == pytest.approx(expected, rel=1e-5)
        assert many_log[name] == pytest.approx(expected, rel=1e-5)


def test_prototypes_start_from_the_names_once(make_trainer: MakeTrainer, palm: PalmForReportGeneration) -> None:
    with torch.no_grad():
        palm.model.prototypes.fill_(0.5)
    kept = make_trainer("align", model=palm, initialize_prototypes=False)
    assert torch.equal(kept.palm.model.prototypes, torch.full_like(palm.model.prototypes, 0.5))
    trainer = make_trainer("align", model=palm)
    tokens = trainer.processing_class.text_tokenizer(
        list(palm.config.prototype_names), padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        features = palm.eval().model.get_text_features(tokens["input_ids"], tokens["attention_mask"])
        assert torch.allclose(palm.model.prototypes, palm.model.pool(features), atol=1e-6)
        palm.model.prototypes.fill_(0.5)
    palm.config.training_stage = "align"
    again = make_trainer("align", model=palm)
    assert torch.equal(again.palm.model.prototypes, torch.full_like(palm.model.prototypes, 0.5))


@pytest.mark.parametrize("stage", STAGES)
def test_streams_need_max_steps_and_train(stage: str, make_trainer: MakeTrainer, studies: DatasetDict) -> None:
    stream = studies["train"].to_iterable_dataset()
    with pytest.raises(ValueError, match="max_steps"):
        make_trainer(stage, train_dataset=stream, max_steps=-1)
    trainer = make_trainer(
        stage,
        train_dataset=stream,
        eval_dataset=studies["validation"].to_iterable_dataset(),
        max_steps=4,
        eval_strategy="steps",
        eval_steps=4,
    )
    trainer.train()
    assert trainer.state.global_step == 4
    assert math.isfinite(trainer.state.log_history[-2][f"eval_{LOSSES[stage][0]}"])


@pytest.mark.parametrize("stage", STAGES)
def test_bfloat16_on_the_cpu(stage: str, make_trainer: MakeTrainer, studies: DatasetDict) -> None:
    trainer = make_trainer(stage, eval_dataset=studies["validation"], bf16=True, max_steps=1)
    trainer.train()
    assert math.isfinite(trainer.evaluate()["eval_loss"])
    assert trainer.palm.dtype == torch.float32


def test_cached_pixels_train_the_same(make_trainer: MakeTrainer, studies: DatasetDict, tmp_path: Path) -> None:
    losses = []
    for cached in (False, True):
        trainer = make_trainer("generate", cache_pixel_values=cached, output_dir=tmp_path / str(cached))
        trainer.train()
        losses.append([line["gen_loss"] for line in trainer.state.log_history if "gen_loss" in line])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_cached_data_set_is_taken_as_it_is(
    make_trainer: MakeTrainer, studies: DatasetDict, processor: PalmProcessor
) -> None:
    cached = cache_pixel_values(studies["train"], processor)
    trainer = make_trainer(
        "generate", train_dataset=cached, eval_dataset=cache_pixel_values(studies["validation"], processor)
    )
    trainer.train()
    assert trainer.evaluate()["eval_generated_reports"] == 5
    with pytest.raises(ConfigError, match="is a stream"):
        make_trainer("mem", train_dataset=studies["train"].to_iterable_dataset(), cache_pixel_values=True)


def test_stage_order_is_checked_before_compute(make_trainer: MakeTrainer, palm: PalmForReportGeneration) -> None:
    with pytest.raises(ConfigError, match="must come first"):
        make_trainer("generate", model=palm, skip_stages=[])
    palm.config.training_stage = "align"
    with pytest.raises(ConfigError, match="would undo 'align'"):
        make_trainer("mem", model=palm, skip_stages=[])


def test_other_models_arguments_and_processors_are_refused(
    palm: PalmForReportGeneration, processor: PalmProcessor, studies: DatasetDict, tmp_path: Path
) -> None:
    bert = BertModel(
        BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )
    args = tiny_args(tmp_path, "mem")
    with pytest.raises(CheckpointError, match="trains a PalmForReportGeneration; it got a BertModel"):
        PalmTrainer(bert, args, studies["train"], processing_class=processor)  # type: ignore[arg-type]
    bert.save_pretrained(tmp_path / "bert")
    with pytest.raises(CheckpointError, match="'bert', not of PALM"):
        PalmTrainer(tmp_path / "bert", args, studies["train"], processing_class=processor)
    with pytest.raises(ConfigError, match="needs PalmTrainingArguments"):
        PalmTrainer(palm, TrainingArguments(str(tmp_path), use_cpu=True), studies["train"], processing_class=processor)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="processing_class must be"):
        PalmTrainer(palm, args, studies["train"])


def test_phantom_training_with_real_validation_is_refused(make_trainer: MakeTrainer, studies: DatasetDict) -> None:
    real = studies["validation"].map(lambda row: {"source": "iu_xray"})
    with pytest.raises(DataError, match="mixed"):
        make_trainer("generate", eval_dataset=real)


def test_no_validation_set_turns_evaluation_off(make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer("generate", save_strategy="epoch")
    assert trainer.args.eval_strategy == "no" and not trainer.args.load_best_model_at_end
    assert "the last checkpoint is kept" in caplog.text
    with pytest.raises(ConfigError, match="needs an eval_dataset"):
        make_trainer("generate", save_strategy="epoch", early_stopping_patience=1)


def test_several_validation_sets(make_trainer: MakeTrainer, studies: DatasetDict) -> None:
    part: Dataset = studies["validation"].select(range(2))
    trainer = make_trainer("generate", eval_dataset={"a": studies["validation"], "b": part})
    scores = trainer.evaluate()
    assert scores["eval_a_generated_reports"] == 5 and scores["eval_b_generated_reports"] == 2
    assert trainer.evaluate(part)["eval_generated_reports"] == 2


def test_logs_and_metadata_of_trackers_hold_numbers_only(make_trainer: MakeTrainer, studies: DatasetDict) -> None:
    seen: list[dict[str, Any]] = []

    class Recorder(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
            seen.append(logs)

    trainer = make_trainer("generate", eval_dataset=studies["validation"], callbacks=[Recorder()])
    trainer.train()
    trainer.evaluate()
    assert seen and all(isinstance(value, (int, float)) for logs in seen for value in logs.values())


def test_report_table_is_sent_only_on_request(
    make_trainer: MakeTrainer, studies: DatasetDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "rrg_hf.trainers.callbacks.ReportTable.send", lambda self, rows, step: sent.append((len(rows), step))
    )
    make_trainer("generate", eval_dataset=studies["validation"]).evaluate()
    assert sent == []
    trainer = make_trainer("generate", eval_dataset=studies["validation"], report_to=["trackio"], log_reports=3)
    trainer.remove_callback(
        next(c for c in trainer.callback_handler.callbacks if type(c).__name__ == "TrackioCallback")
    )
    trainer.evaluate()
    assert sent == []
    trainer.is_in_train = True
    trainer.evaluate()
    assert sent == [(3, 0)]


def test_tensorboard_gets_the_numbers(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    make_trainer("mem", report_to=["tensorboard"], max_steps=1).train()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (tmp_path / "tb").rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file))
    events.Reload()
    assert "train/mem_loss" in events.Tags()["scalars"]
