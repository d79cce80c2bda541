"""LeadTrainer: what trains, what is logged, what is saved, for three backbones and every training mode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import DatasetDict
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.modeling.lead.adapter_lead import load_adapter
from rrg_hf.trainers import LeadTrainer, load_lead
from tests.tiny_lead import LEAD_CLASSES
from tests.trainers.conftest import LEAD_SETTINGS, MakeLeadTrainer, lead_args

FAMILIES = ("qwen3_vl", "internvl", "mistral3")
MODES = ("frozen", "vision", "llm", "hybrid", "full")


def snapshot(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def logits(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(**{name: value for name, value in batch.items() if name != "expert_labels"}).logits


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Logits of tiny random models are large, so relative to their size."""
    assert (one - other).abs().max() <= tolerance * one.abs().max()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_that_trains_moves_and_nothing_else(
    family: str, mode: str, make_lead_trainer: MakeLeadTrainer
) -> None:
    trainer = make_lead_trainer(family, training_mode=mode)
    before = snapshot(trainer.model)
    trainer.train()
    changed = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    trains = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert changed == trains

    parts = {part for part in ("lead_experts", "lead_fusion", "lora_A", "lora_B") for name in trains if part in name}
    assert parts == {"lead_experts", "lead_fusion"} | ({"lora_A", "lora_B"} if mode in ("llm", "hybrid") else set())
    tower = trainer.lead.model.image_tower
    in_tower = {name for name in before if f".{tower}." in name or "multi_modal_projector" in name}
    in_tower = {name for name in in_tower if "original_module" not in name}
    assert in_tower and (in_tower <= trains) == (mode in ("vision", "hybrid", "full"))
    if mode != "full":
        assert not any("language_model" in name and "lora_" not in name for name in trains)
    lora = {name for name in trains if "lora_" in name}
    assert all("language_model.layers." in name and ".self_attn." in name for name in lora)


def test_both_losses_are_logged_and_add_up(make_lead_trainer: MakeLeadTrainer, studies: DatasetDict) -> None:
    trainer = make_lead_trainer(eval_dataset=studies["validation"], eval_strategy="steps", eval_steps=3)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "loss" in line]
    assert len(logs) == 3
    for line in logs:
        assert line["loss"] == pytest.approx(line["language_loss"] + 4.0 * line["expert_loss"], rel=1e-4)
    (evaluation,) = [line for line in trainer.state.log_history if "eval_loss" in line]
    assert {"eval_language_loss", "eval_expert_loss", "eval_rules_micro_f1", "eval_distinct_reports"} <= set(
        evaluation
    )


def test_the_expert_loss_is_a_mean_over_known_labels(make_lead_trainer: MakeLeadTrainer, studies: DatasetDict) -> None:
    """By a loop in float64, over batches with different numbers of known labels."""
    trainer = make_lead_trainer(
        training_mode="frozen", label_source="study", per_device_train_batch_size=3, gradient_accumulation_steps=4,
        max_steps=1,
    )  # fmt: skip
    batch = trainer.data_collator(list(trainer.train_dataset))
    trainer.lead.eval()
    with torch.no_grad():
        out = trainer.lead(**batch)
    total = known = 0.0
    for row, targets in zip(out.expert_logits.double(), batch["expert_labels"].double(), strict=True):
        for logit, target in zip(row, targets, strict=True):
            if target >= 0:
                p = torch.sigmoid(logit)
                total -= float(target * torch.log(p) + (1 - target) * torch.log(1 - p))
                known += 1
    assert 0 < known < batch["expert_labels"].numel()
    assert float(out.expert_loss) == pytest.approx(total / known, rel=1e-5)
    trainer.train()
    (line,) = [line for line in trainer.state.log_history if "loss" in line]
    assert line["expert_loss"] == pytest.approx(total / known, rel=1e-4)
    assert line["language_loss"] == pytest.approx(float(out.language_loss), rel=1e-4)


def test_accumulated_batches_equal_one_large_batch(make_lead_trainer: MakeLeadTrainer, tmp_path: Path) -> None:
    results = []
    for name, batch, steps in (("one", 12, 1), ("three", 4, 3)):
        trainer = make_lead_trainer(
            output_dir=tmp_path / name, per_device_train_batch_size=batch, gradient_accumulation_steps=steps,
            max_steps=2, optim="sgd", max_grad_norm=0.0, label_source="study",
        )  # fmt: skip
        trainer.train()
        results.append({name: weight.detach() for name, weight in trainer.model.named_parameters()})
    one, three = results
    for name, weight in one.items():
        torch.testing.assert_close(three[name], weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("mode", ["llm", "hybrid"])
def test_gradient_checkpointing_reaches_every_lora_matrix(
    mode: str, reentrant: bool, make_lead_trainer: MakeLeadTrainer, tmp_path: Path
) -> None:
    """With frozen embeddings nothing that enters the first layer asks for a gradient by itself."""
    gradients = []
    for checkpointing in (False, True):
        kwargs = {"gradient_checkpointing_kwargs": {"use_reentrant": reentrant}} if checkpointing else {}
        trainer = make_lead_trainer(
            training_mode=mode, gradient_checkpointing=checkpointing, output_dir=tmp_path / str(checkpointing),
            max_steps=1, optim="sgd", learning_rate=1.0, max_grad_norm=0.0, **kwargs,
        )  # fmt: skip
        before = snapshot(trainer.model)
        trainer.train()
        gradients.append({name: before[name] - weight.detach() for name, weight in trainer.model.named_parameters()})
    lora_b = {name: value for name, value in gradients[1].items() if "lora_B" in name}
    assert lora_b and all(value.norm() > 0 for value in lora_b.values())
    for name, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_and_merged_model_give_the_same_logits(family: str, make_lead_trainer: MakeLeadTrainer) -> None:
    trainer = make_lead_trainer(family)
    trainer.train()
    trainer.save_model()
    folder = Path(str(trainer.args.output_dir))
    batch = trainer.data_collator(list(trainer.train_dataset)[:3])
    trained = logits(trainer.model, batch)

    merged = AutoModelForImageTextToText.from_pretrained(folder)
    assert type(merged) is LEAD_CLASSES[family]
    close(trained, logits(merged, batch))
    assert AutoProcessor.from_pretrained(folder).image_size == 32

    state = load_file(folder / "adapter" / "adapter_model.safetensors")
    own = {name.split("lead_", 1)[1] for name in merged.state_dict() if "lead_" in name}
    saved = {name.split("lead_", 1)[1].removeprefix("experts.modules_to_save.") for name in state if "lead_" in name}
    assert saved == own
    assert sum("lora_B" in name for name in state) == 3 * 4
    torch.manual_seed(99)  # LEAD's parts of the base start from another seed
    close(trained, logits(load_adapter(folder / "adapter"), batch))
    kept = load_adapter(folder / "adapter", merge=False)
    close(trained, logits(kept, batch))


@pytest.mark.slow
def test_an_adapter_loads_in_a_fresh_process(make_lead_trainer: MakeLeadTrainer, tmp_path: Path) -> None:
    trainer = make_lead_trainer(merge_adapter=False)
    trainer.train()
    trainer.save_model()
    folder = Path(str(trainer.args.output_dir))
    assert not list(folder.glob("model*.safetensors")) and not (folder / "adapter").exists()
    batch = trainer.data_collator(list(trainer.train_dataset)[:2])
    torch.save({name: value for name, value in batch.items() if name != "expert_labels"}, tmp_path / "batch.pt")
    code = (
        "import sys, torch; from rrg_hf.modeling.lead import load_adapter; "
        "model = load_adapter(sys.argv[1]); batch = torch.load(sys.argv[2], weights_only=True); "
        "torch.save(model(**batch).logits.detach(), sys.argv[3])"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "batch.pt"), str(tmp_path / "logits.pt")], check=True
    )
    close(logits(trainer.model, batch), torch.load(tmp_path / "logits.pt", weights_only=True))


def test_an_adapter_that_lacks_a_tensor_is_refused(make_lead_trainer: MakeLeadTrainer) -> None:
    from safetensors.torch import save_file

    trainer = make_lead_trainer(merge_adapter=False, max_steps=1)
    trainer.train()
    trainer.save_model()
    file = Path(str(trainer.args.output_dir)) / "adapter_model.safetensors"
    state = load_file(file)
    lost = next(name for name in state if "lead_experts" in name)
    save_file({name: value for name, value in state.items() if name != lost}, file)
    with pytest.raises(ValueError, match="1 tensors are missing"):
        load_adapter(file.parent)


def test_the_saved_model_decodes_as_the_paper_does(make_lead_trainer: MakeLeadTrainer, studies: DatasetDict) -> None:
    trainer = make_lead_trainer(training_mode="frozen")
    trainer.train()
    trainer.save_model()
    folder = Path(str(trainer.args.output_dir))
    model = AutoModelForImageTextToText.from_pretrained(folder)
    generation = model.generation_config
    assert (generation.num_beams, generation.repetition_penalty, generation.length_penalty) == (2, 1.05, 1.0)
    assert generation.do_sample is False
    assert trainer._processor.end_token_id in generation.eos_token_id
    assert model.config.get_text_config().use_cache is not False
    record = json.loads((folder / "rrg_training.json").read_text())
    assert (record["method"], record["finished"], record["adapter"]) == ("lead", True, False)
    assert record["lead"]["fusion"] == "gate" and record["phantom"] is True
    assert str(folder) not in json.dumps(record)
    rows = trainer.generate_reports(trainer.train_dataset, 3)
    inputs = trainer.data_collator.encode([trainer.data_collator.sample(studies["train"][0], with_report=False)])
    own = model.generate(**inputs, max_new_tokens=6)
    assert trainer._processor.decode_reports(own, inputs) == [rows[0]["report"]]


@pytest.mark.parametrize(
    ("lead", "mode", "moves"),
    [
        ({"fusion": "none"}, "llm", {"lead_experts"}),
        ({"fusion": "none", "expert_loss_weight": 0}, "llm", set()),
        ({"projection": "shared"}, "frozen", {"lead_experts", "lead_fusion"}),
        ({"fusion": "add"}, "frozen", {"lead_experts", "lead_fusion"}),
        ({"fusion": "none", "expert_prompting": True}, "llm", {"lead_experts"}),
    ],
    ids=["experts only", "vanilla", "shared", "add", "prompting"],
)
def test_the_rows_of_table_vi_train(
    lead: dict[str, Any], mode: str, moves: set[str], make_lead_trainer: MakeLeadTrainer, studies: DatasetDict
) -> None:
    trainer = make_lead_trainer(
        lead=lead, training_mode=mode, eval_dataset=studies["validation"], eval_strategy="steps", eval_steps=3
    )
    before = snapshot(trainer.model)
    trainer.train()
    trainer.save_model()
    changed = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert {part for part in ("lead_experts", "lead_fusion") if any(part in name for name in changed)} == moves
    assert changed == {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    logged = {name for line in trainer.state.log_history for name in line}
    assert ("expert_loss" in logged) == bool(moves)
    loaded = AutoModelForImageTextToText.from_pretrained(str(trainer.args.output_dir))
    for name, value in lead.items():
        assert getattr(loaded.config.lead_config, name) == value


def test_expert_prompting_writes_what_the_experts_see(make_lead_trainer: MakeLeadTrainer) -> None:
    trainer = make_lead_trainer(lead={"fusion": "none", "expert_prompting": True}, training_mode="frozen")
    rows = list(trainer.train_dataset)[:2]
    batch = trainer.data_collator(rows)
    biases = trainer.lead.model.lead_experts.experts.bias_3
    with torch.no_grad():  # two experts see their finding everywhere, the others nowhere
        biases.fill_(-50.0)
        biases[1] = biases[8] = 50.0
    prompted = trainer._with_predicted_observations({**batch, "num_known_labels": 3}, batch["samples"])
    assert prompted["num_known_labels"] == 3 and torch.equal(prompted["expert_labels"], batch["expert_labels"])
    for ids, labels in zip(prompted["input_ids"], prompted["labels"], strict=True):
        text = trainer._processor.decode(ids[labels == -100])
        assert "Findings predicted by a classifier: Cardiomegaly, Pneumothorax." in text
    plain = [trainer._processor.decode(ids) for ids in batch["input_ids"]]
    assert not any("predicted by a classifier" in text for text in plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training_mode": "hybird"}, "Did you mean 'hybrid'"),
        ({"training_mode": "frozen", "lora_target_modules": "x"}, "has no LoRA"),
        ({"training_mode": "llm", "vision_learning_rate": 1e-5}, "leaves the visual tower as it is"),
        ({"vision_learning_rate": 0.0}, "training_mode 'llm'"),
        ({"lora_r": 0}, "at least 1"),
        ({"lora_dropout": 1.0}, "between 0 and 1"),
        ({"label_source": "radiologist"}, "choose one of rules, chexbert, study"),
        ({"label_model": "folder"}, "goes with label_source 'chexbert'"),
        ({"uncertainty_policy": "ignore"}, "uncertain_ignored"),
        ({"generation_repetition_penalty": 0.0}, "above 0"),
        ({"max_length": 1}, "max_length is 1"),
        ({"metric_for_best_model": "rules_micro_f"}, "does not log"),
        ({"lead": {"fusion": "none", "expert_loss_weight": 0}, "training_mode": "frozen"}, "has none that learn"),
        ({"dtype": "bfloat16"}, "neither bf16 nor fp16"),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any], message: str, make_lead_trainer: MakeLeadTrainer) -> None:
    with pytest.raises(ConfigError, match=message):
        make_lead_trainer(**changes)


def test_a_quantized_model_trains_an_adapter_only(lead_dirs: dict[str, Path], tmp_path: Path) -> None:
    model = load_lead(lead_dirs["qwen3_vl"], LEAD_SETTINGS)
    model.is_quantized = True
    with pytest.raises(ConfigError, match="'vision' cannot train a quantized model"):
        LeadTrainer(model, lead_args(tmp_path, training_mode="vision"))
    with pytest.raises(ConfigError, match="merge_adapter needs whole weights"):
        LeadTrainer(model, lead_args(tmp_path, training_mode="llm"))


def test_a_prompt_that_does_not_fit_names_the_study(make_lead_trainer: MakeLeadTrainer) -> None:
    trainer = make_lead_trainer(max_length=10)
    with pytest.raises(DataError, match=r"studies 'phantom.*max_length=10 would cut the prompt in 4 of 4 samples \(4"):
        trainer.train()


def test_frozen_weights_stay_in_16_bits_beside_float32(make_lead_trainer: MakeLeadTrainer) -> None:
    trainer = make_lead_trainer(dtype="bfloat16", bf16=True)
    for name, weight in trainer.model.named_parameters():
        assert weight.dtype == (torch.float32 if weight.requires_grad else torch.bfloat16), name
    before = snapshot(trainer.model)
    trainer.train()
    changed = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    trainer.save_model()
    loaded = AutoModelForImageTextToText.from_pretrained(str(trainer.args.output_dir))
    assert loaded.model.language_model.layers[0].self_attn.q_proj.weight.dtype == torch.bfloat16


def test_the_visual_tower_may_have_a_rate_of_its_own(make_lead_trainer: MakeLeadTrainer) -> None:
    trainer = make_lead_trainer(vision_learning_rate=1e-6)
    optimizer = trainer.create_optimizer()
    tower = {id(weight) for weight in trainer.lead.model.visual.parameters()}
    rates = {group["lr"] for group in optimizer.param_groups if any(id(w) in tower for w in group["params"])}
    others = {group["lr"] for group in optimizer.param_groups if not any(id(w) in tower for w in group["params"])}
    assert (rates, others) == ({1e-6}, {1e-2})


def test_other_models_are_refused(make_lead_trainer: MakeLeadTrainer, palm_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="checkpoint of 'palm'"):
        make_lead_trainer(model=palm_dir)
