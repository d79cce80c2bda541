"""LEAD's recipe files: read, checked before anything is loaded, run, left alone, gone on with."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import DatasetDict
from safetensors.torch import load_file

from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.modeling.lead import LeadConfig
from rrg_hf.trainers.lead_config import LeadTrainingArguments
from rrg_hf.trainers.lead_loading import load_lead
from rrg_hf.trainers.lead_recipe import (
    LEAD_KEYS,
    LeadRecipe,
    four_bit,
    load_lead_recipe,
    load_lead_start,
    run_lead_recipe,
)
from tests.trainers.conftest import LEAD_SETTINGS

EXAMPLES = Path(__file__).parents[2] / "examples" / "configs" / "lead"


def recipe_dict(backbone: Path, studies: Path, output: Path) -> dict[str, Any]:
    return {
        "model": {"path": str(backbone), "lead": dict(LEAD_SETTINGS), "processor": {"image_size": 32}},
        "data": {"train_dataset": str(studies)},
        "training": {
            "output_dir": str(output),
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "lora_r": 4,
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": 1,
            "learning_rate": "1e-2",
            "generation_max_new_tokens": 4,
            "eval_generate_samples": 2,
        },
    }


@pytest.fixture()
def recipe(lead_dirs: dict[str, Path], studies_dir: Path, tmp_path: Path) -> dict[str, Any]:
    return recipe_dict(lead_dirs["qwen3_vl"], studies_dir, tmp_path / "out")


def write(content: Any, folder: Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_overrides_win(recipe: dict[str, Any], tmp_path: Path) -> None:
    path = write(recipe, tmp_path)
    loaded = load_lead_recipe(path)
    assert loaded.arguments().learning_rate == 1e-2 and loaded.arguments().training_mode == "hybrid"
    loaded = load_lead_recipe(
        path,
        ["training-mode=llm", "model.lead.fusion=add", "split=test", "training.seed=7", "model.processor.prompt=W."],
    )
    assert (loaded.arguments().training_mode, loaded.arguments().seed) == ("llm", 7)
    assert loaded.data["split"] == "test" and loaded.model["processor"] == {"image_size": 32, "prompt": "W."}
    assert loaded.model["lead"] == {**LEAD_SETTINGS, "fusion": "add"}
    model, processor = load_lead_start(loaded, loaded.arguments())
    assert model.config.lead_config.fusion == "add" and model.config.lead_config.gate_rank == 4
    assert (processor.prompt, processor.image_size) == ("W.", 32)


BAD_SETTINGS = {
    "modl.path=x": r"no setting 'modl' \(did you mean 'model'\?\)",
    "stages.mem.seed=1": "no setting 'stages'",
    "model.pth=x": r"model has no setting 'pth' \(did you mean 'path'\?\)",
    "model.path=": r"model\.path is empty",
    "model={path: x}": "`model` is a block",
    "model.path=3": r"model\.path must be a text",
    "model.path=nowhere": "No model could be found at 'nowhere'",
    "model.dtype=float64": "model.dtype is 'float64'; choose one of float32, bfloat16, float16, auto",
    "model.lead=3": r"model\.lead must be a block",
    "model.lead.fusoin=add": r"model\.lead has no setting 'fusoin' \(did you mean 'fusion'\?\)",
    "model.lead.fusion=sum": "`fusion` must be one of",
    "model.lead.gate_rank=0": "`gate_rank` must be at least 1",
    "model.lead.gate_rank=wide": r"model\.lead\.gate_rank must be a whole number",
    "model.lead.expert_loss_weight=heavy": r"model\.lead\.expert_loss_weight must be a number",
    "model.lead.expert_threshold=1": "expert_threshold",
    "model.lead.expert_prompting=maybe": r"model\.lead\.expert_prompting must be true or false",
    "model.lead.expert_names=[]": "`expert_names` must be one or more",
    "model.processor=3": r"model\.processor must be a block",
    "model.processor.imagesize=3": r"model\.processor has no setting 'imagesize' \(did you mean 'image_size'\?\)",
    "model.processor.image_size=big": r"model\.processor\.image_size must be a whole number",
    "model.load_in_4bit=perhaps": r"model\.load_in_4bit must be true or false",
    "data.train_dataset=3": r"data\.train_dataset must be a text",
    "data.splt=x": "did you mean 'split'",
    "data.streaming=maybe": r"data\.streaming must be true or false",
    "training_mode=hybird": "Did you mean 'hybrid'",
    "lerning_rate=1": r"did you mean 'learning_rate'\?",
    "learning_rate=fast": "learning_rate must be a number",
    "lora_r=4.5": "lora_r must be a whole number",
    "lora_r=0": "lora_r is 0",
    "merge_adapter=perhaps": "merge_adapter must be true or false",
    "label_source=radiologist": "choose one of rules, chexbert, study",
    "generation_num_beams=0": "generation_num_beams",
    "stage=mem": "no setting 'stage'",
    "output_dir=": "output_dir is empty",
    "resume_from_checkpoint=x": "goes on by itself",
    "optim=adamw_bnb_8bit": "bitsandbytes",
    "deepspeed=x.json": "deepspeed",
    "data.streaming=true": "nobody knows the length of the data: set max_steps",
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_setting_that_cannot_work_is_one_clear_error(
    setting: str, recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [setting]
    if setting == "data.streaming=true":
        changes.append("max_steps=-1")
    monkeypatch.setattr("rrg_hf.trainers.lead_recipe.load_data", lambda data: pytest.fail("data was loaded"))
    monkeypatch.setattr("rrg_hf.trainers.lead_recipe.load_lead", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises((ConfigError, CheckpointError), match=BAD_SETTINGS[setting]) as caught:
        run_lead_recipe(load_lead_recipe(write(recipe, tmp_path), changes))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_every_field_of_the_configuration_can_be_set() -> None:
    own = {item.name for item in fields(LeadConfig)} & set(LeadConfig.__annotations__)
    assert set(LEAD_KEYS) == own - {"model_type", "base_config_key"}


def test_missing_data(recipe: dict[str, Any], tmp_path: Path) -> None:
    path = write(recipe, tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        run_lead_recipe(load_lead_recipe(path, [f"train_dataset={tmp_path / 'none'}"]))
    with pytest.raises(DataError, match="no split 'dev'"):
        run_lead_recipe(load_lead_recipe(path, ["eval_split=dev"]))


def test_a_recipe_made_in_python_is_checked_too(recipe: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"training\.max_steps must be a whole number"):
        run_lead_recipe(LeadRecipe(model=recipe["model"], data=recipe["data"], training={"max_steps": "two"}))
    with pytest.raises(ConfigError, match="model has no setting 'backbones'"):
        run_lead_recipe(LeadRecipe(model={"backbones": {}}, data=recipe["data"]))


@pytest.fixture(scope="module")
def finished(
    lead_dirs: dict[str, Path], studies_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A recipe that has been run to its end, and what it said."""
    root = tmp_path_factory.mktemp("recipe")
    path = write(recipe_dict(lead_dirs["qwen3_vl"], studies_dir, root / "out"), root)
    lines: list[str] = []
    assert run_lead_recipe(load_lead_recipe(path), say=lines.append) == root / "out"
    return root, lines


def test_a_run_says_what_trains_and_what_came_out(finished: tuple[Path, list[str]]) -> None:
    root, lines = finished
    assert lines[0].startswith("training_mode hybrid: ") and lines[0].endswith(" parameters train")
    trained, total = (int(word.replace(",", "")) for word in lines[0].split() if word[0].isdigit())
    whole = sum(weight.numel() for weight in load_lead(root / "out").parameters())
    lora = load_file(root / "out" / "adapter" / "adapter_model.safetensors")
    assert total == whole + sum(lora[name].numel() for name in lora if ".lora_A." in name or ".lora_B." in name)
    assert trained == sum(value.numel() for value in lora.values())
    assert lines[1].startswith("starts from ") and lines[1].endswith("qwen3_vl")
    assert "finished at step 2" in lines[2] and "best rules_micro_f1" in lines[2]
    assert load_lead(root / "out").config.lead_config.gate_rank == 4
    record = json.loads((root / "out" / "rrg_training.json").read_text())
    assert (record["method"], record["finished"], record["global_step"]) == ("lead", True, 2)


def test_a_folder_of_another_row_is_refused(finished: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, _ = finished
    interrupted = tmp_path / "out"
    shutil.copytree(next((root / "out").glob("checkpoint-*")), interrupted / "checkpoint-1")
    for folder in (root / "out", interrupted):
        for override, told in (("model.lead.fusion=add", r"model\.lead\.fusion 'gate', not 'add'"),
                               ("training_mode=llm", "training_mode 'hybrid', not 'llm'")):  # fmt: skip
            recipe = load_lead_recipe(root / "recipe.yaml", [override, f"output_dir={folder}"])
            with pytest.raises(ConfigError, match=rf"holds a run of another model \({told}\)"):
                run_lead_recipe(recipe)


def test_training_starts_from_a_whole_model_that_keeps_its_shapes(finished: tuple[Path, list[str]]) -> None:
    root, _ = finished
    with pytest.raises(CheckpointError, match=r"is an adapter\. Training starts from whole models"):
        load_lead(root / "out" / "adapter")
    with pytest.raises(CheckpointError, match="trained weights that these settings of `lead` have no place for"):
        load_lead(root / "out", {"fusion": "none"})
    with pytest.raises(CheckpointError, match="keeps its shapes"):
        load_lead(root / "out", {"projection": "shared"})


def test_a_missing_chexbert_is_named_before_weights_are_read(
    lead_dirs: dict[str, Path], studies_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrg_hf.trainers.lead_recipe.load_lead_start", lambda *_: pytest.fail("read weights"))
    monkeypatch.setattr("rrg_hf.metrics.artifacts.prepared_folder", lambda name: tmp_path / name)
    path = write(recipe_dict(lead_dirs["qwen3_vl"], studies_dir, tmp_path / "out"), tmp_path)
    with pytest.raises(ConfigError, match=r"chexbert is not prepared.*label_source is 'rules'"):
        run_lead_recipe(load_lead_recipe(path, ["label_source=chexbert"]))


def test_a_finished_run_is_left_alone(finished: tuple[Path, list[str]]) -> None:
    root, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (root / "out").rglob("*")}
    lines: list[str] = []
    assert run_lead_recipe(load_lead_recipe(root / "recipe.yaml"), say=lines.append) == root / "out"
    assert len(lines) == 1 and "finished earlier" in lines[0]
    assert {path: path.stat().st_mtime_ns for path in (root / "out").rglob("*")} == before


def test_an_interrupted_run_goes_on_and_ends_alike(finished: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, _ = finished
    shutil.copytree(root / "out" / "checkpoint-1", tmp_path / "out" / "checkpoint-1")
    lines: list[str] = []
    run_lead_recipe(load_lead_recipe(root / "recipe.yaml", [f"output_dir={tmp_path / 'out'}"]), say=lines.append)
    assert lines[1] == "goes on from checkpoint-1"
    one, other = load_lead(root / "out").state_dict(), load_lead(tmp_path / "out").state_dict()
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_lead_checkpoint_is_trained_further(finished: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, _ = finished
    recipe = load_lead_recipe(
        root / "recipe.yaml",
        [f"model.path={root / 'out'}", f"output_dir={tmp_path}", "training_mode=frozen", "max_steps=1"],
    )
    run_lead_recipe(recipe)
    record = json.loads((tmp_path / "rrg_training.json").read_text())
    assert record["previous_stage"]["global_step"] == 2 and record["adapter"] is False
    with pytest.raises(CheckpointError, match=r"incomplete|cannot be loaded"):
        run_lead_recipe(
            load_lead_recipe(
                root / "recipe.yaml",
                [f"model.path={root / 'out'}", f"output_dir={tmp_path / 'x'}", "model.lead.gate_rank=3"],
            )
        )


def test_a_stream_trains_by_steps(recipe: dict[str, Any], studies: DatasetDict, tmp_path: Path) -> None:
    from rrg_hf.data.store import save_studies

    save_studies(studies, tmp_path / "studies")
    path = write(recipe, tmp_path)
    changes = ["streaming=true", f"train_dataset={tmp_path / 'studies'}", "max_steps=1", "save_strategy=no"]
    folder = run_lead_recipe(load_lead_recipe(path, [*changes, "eval_strategy=no", "training_mode=frozen"]))
    assert json.loads((folder / "rrg_training.json").read_text())["global_step"] == 1


def test_4_bits_need_bitsandbytes_and_lora(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "bitsandbytes" else real(name, *rest)
    )
    monkeypatch.setattr("rrg_hf.trainers.lead_recipe.load_data", lambda data: pytest.fail("data was loaded"))
    path = write(recipe, tmp_path)
    with pytest.raises(ConfigError, match="pip install bitsandbytes"):
        run_lead_recipe(load_lead_recipe(path, ["model.load_in_4bit=true"]))
    with pytest.raises(ConfigError, match="does not go with training_mode 'vision'"):
        run_lead_recipe(load_lead_recipe(path, ["model.load_in_4bit=true", "training_mode=vision"]))
    assert not (tmp_path / "out").exists()


def test_4_bits_leave_whole_what_trains(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: object())
    settings = four_bit(load_lead_recipe(write(recipe, tmp_path)).arguments())
    assert settings.load_in_4bit and settings.bnb_4bit_quant_type == "nf4"
    assert {"lead_experts", "lead_fusion", "visual", "vision_tower"} <= set(settings.llm_int8_skip_modules)


# --- the example recipes ---------------------------------------------------------------------------------------------

EXAMPLE_FILES = sorted(EXAMPLES.glob("*.yaml"))
ON_ANY_MACHINE = ["bf16=false", "use_cpu=true"]


@pytest.mark.parametrize("path", EXAMPLE_FILES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_says_what_the_defaults_are(path: Path, tmp_path: Path) -> None:
    assert len(EXAMPLE_FILES) == 5
    recipe = load_lead_recipe(path, [*ON_ANY_MACHINE, f"output_dir={tmp_path}"])
    defaults = LeadConfig()
    assert {name: getattr(defaults, name) for name in recipe.model["lead"]} == recipe.model["lead"]
    assert recipe.model["processor"] == {"image_size": 256} and recipe.model["dtype"] == "bfloat16"
    args = recipe.arguments()
    plain = LeadTrainingArguments(str(tmp_path), use_cpu=True)
    # Not the paper's; the file says why where it differs from the default.
    told = {"output_dir", "label_source", "bf16", "use_cpu", "dataloader_num_workers", "report_to"}
    told |= {"activation_checkpointing", "eval_generate_samples"}
    for name in set(recipe.training) - told:
        assert getattr(args, name) == getattr(plain, name), name
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps, args.lora_r) == (5, 6, 64)


def test_an_example_without_a_gpu_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    with pytest.raises(ConfigError, match=r"training: .*bf16.* Set use_cpu to true for a run without a GPU\."):
        load_lead_recipe(EXAMPLE_FILES[0], [f"output_dir={tmp_path}"]).arguments()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # of a setting with an outdated name
        load_lead_recipe(EXAMPLE_FILES[0], [f"output_dir={tmp_path}", "use_cpu=true"]).arguments()


@pytest.mark.parametrize("path", EXAMPLE_FILES, ids=lambda path: path.stem)
def test_every_value_of_an_example_names_its_source(path: Path) -> None:
    names = {item.name for item in fields(LeadConfig)} | {
        "learning_rate", "weight_decay", "num_train_epochs", "per_device_train_batch_size", "lora_r", "lora_alpha",
        "lora_dropout", "label_source", "uncertainty_policy", "section", "optim", "training_mode", "image_size",
        "lr_scheduler_type", "warmup_steps", "generation_num_beams", "generation_repetition_penalty", "dtype", "path",
    }  # fmt: skip
    seen = 0
    for line in path.read_text().splitlines():
        name, separator, _ = line.strip().partition(": ")
        if separator and name in names:
            seen += 1
            assert (
                "# Sec. " in line
                or "# Table " in line
                or "not stated in the paper" in line
                or "first version" in line
                or ("true, with fusion none" in line)
            ), line
    assert seen > 20


def test_the_rows_of_the_papers_tables_are_overrides(recipe: dict[str, Any], tmp_path: Path) -> None:
    """The table in the examples' README."""
    path = write(recipe, tmp_path)
    rows = [line.split("|")[2] for line in (EXAMPLES / "README.md").read_text().splitlines() if "model.lead." in line]
    overrides = [cell.replace("`", "").split() for cell in rows if cell.strip().startswith("`model.lead")]
    assert len(overrides) == 5
    for changes in overrides:
        loaded = load_lead_recipe(path, changes)
        model, _ = load_lead_start(loaded, loaded.arguments())
        for change in changes:
            name, _, value = change.removeprefix("model.lead.").partition("=")
            assert getattr(model.config.lead_config, name) == yaml.safe_load(value)
