"""Recipe files: read, checked, overridden, and run through the three stages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.modeling.palm import PalmConfig
from rrg_hf.trainers import PalmTrainingArguments, load_palm
from rrg_hf.trainers.palm_recipe import PalmRecipe, load_recipe, load_start, run_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"


def recipe_dict(palm_dir: Path, studies_dir: Path, output: Path) -> dict[str, Any]:
    return {
        "model": {"path": str(palm_dir)},
        "data": {"train_dataset": str(studies_dir)},
        "training": {
            "output_dir": str(output),
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": 1,
            "learning_rate": "1e-3",
        },
        "stages": {"generate": {"generation_max_new_tokens": 4, "eval_generate_samples": 2}},
    }


@pytest.fixture()
def recipe(palm_dir: Path, studies_dir: Path, tmp_path: Path) -> dict[str, Any]:
    return recipe_dict(palm_dir, studies_dir, tmp_path / "out")


def write(content: Any, tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_settings_of_a_stage_win_and_overrides_win_over_all(recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe["stages"]["mem"] = {"learning_rate": 2e-3}
    path = write(recipe, tmp_path)
    loaded = load_recipe(path)
    assert [loaded.arguments(stage).learning_rate for stage in ("mem", "align")] == [2e-3, 1e-3]
    assert loaded.arguments("align").output_dir == str(tmp_path / "out" / "align")
    loaded = load_recipe(path, ["learning_rate=5e-4", "stages.align.seed=7", "split=test", "output-dir=elsewhere"])
    assert loaded.arguments("mem").learning_rate == 5e-4
    assert (loaded.arguments("align").seed, loaded.arguments("mem").seed) == (7, 42)
    assert loaded.data["split"] == "test" and loaded.output_dir == Path("elsewhere")
    assert load_recipe(path, ["skip_stages=mem"]).order == ["align", "generate"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modl": {}}, r"no setting 'modl' \(did you mean 'model'\?\)"),
        (
            {"training": {"learning_rat": 1}},
            r"training has no setting 'learning_rat' \(did you mean 'learning_rate'\?\)",
        ),
        ({"stages": {"mem": {"lr": 1}}}, r"stages\.mem has no setting 'lr'"),
        ({"stages": {"allign": {}}}, r"stages has no setting 'allign' \(did you mean 'align'\?\)"),
        ({"stages": {"mem": 3}}, r"stages\.mem must be a block"),
        ({"data": {"train_dataset": "x", "splt": "y"}}, r"data has no setting 'splt' \(did you mean 'split'\?\)"),
        ({"data": {}}, "train_dataset is missing"),
        ({"data": [1]}, "`data` must be a block"),
        ({"model": {}}, "model needs `path`"),
        ({"model": {"path": "a", "backbones": {"vision": "v"}}}, "both `path` and `backbones`"),
        ({"model": {"backbones": {"vision": "v"}}}, "lacks text, decoder"),
        ({"training": {"stage": "mem"}}, r"training has no setting 'stage'"),
    ],
)
def test_wrong_recipes_are_refused_before_anything_is_loaded(
    change: dict[str, Any], message: str, recipe: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(write({**recipe, **change}, tmp_path))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lerning_rate=1", r"did you mean 'learning_rate'\?"),
        ("learning_rate", "Write key=value"),
        ("modle.path=x", r"did you mean 'model'\?"),
        ("model.path.deep=x", "not a block"),
        ("learning_rate=[1", "not a valid value"),
    ],
)
def test_wrong_overrides_are_refused(override: str, message: str, recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(write(recipe, tmp_path), [override])


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No recipe file"):
        load_recipe(tmp_path / "none.yaml")
    for text, message in [("a: [", "not valid YAML"), ("- 1", "it holds list"), ("", "it holds NoneType")]:
        with pytest.raises(ConfigError, match=message):
            load_recipe(write(text, tmp_path))


@pytest.fixture(scope="module")
def finished(palm_dir: Path, studies_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A recipe that has been run to its end, and what it said."""
    root = tmp_path_factory.mktemp("recipe")
    path = write(recipe_dict(palm_dir, studies_dir, root / "out"), root)
    lines: list[str] = []
    folders = run_recipe(load_recipe(path), say=lines.append)
    assert folders == {stage: root / "out" / stage for stage in ("mem", "align", "generate")}
    return root, lines


def test_all_stages_run_in_order(finished: tuple[Path, list[str]]) -> None:
    root, lines = finished
    assert [load_palm(root / "out" / stage).config.training_stage for stage in ("mem", "align", "generate")] == [
        "mem",
        "align",
        "generate",
    ]
    assert lines[0] == "mem: starts from the recipe's model"
    assert lines[2] == f"align: starts from {root / 'out' / 'mem'}"
    assert "best rules_micro_f1" in lines[-1]


def test_a_finished_run_is_left_alone_and_a_lost_stage_is_trained_again(
    finished: tuple[Path, list[str]], tmp_path: Path
) -> None:
    root, _ = finished
    copy = tmp_path / "out"
    shutil.copytree(root / "out", copy)
    before = (copy / "generate" / "model.safetensors").stat().st_mtime_ns
    recipe = load_recipe(root / "recipe.yaml", [f"output_dir={copy}"])
    lines: list[str] = []
    run_recipe(recipe, say=lines.append)
    assert (copy / "generate" / "model.safetensors").stat().st_mtime_ns == before
    assert len(lines) == 3 and all("finished earlier" in line for line in lines)

    shutil.rmtree(copy / "generate")
    lines.clear()
    run_recipe(recipe, ["generate"], say=lines.append)
    assert lines[0] == f"generate: starts from {copy / 'align'}"

    shutil.rmtree(copy / "mem")
    with pytest.raises(ConfigError, match="mem, from which it starts, is not finished"):
        run_recipe(recipe, say=lines.append)


def test_an_interrupted_stage_goes_on_from_its_checkpoint(finished: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, _ = finished
    shutil.copytree(root / "out" / "mem" / "checkpoint-1", tmp_path / "mem" / "checkpoint-1")
    recipe = load_recipe(root / "recipe.yaml", [f"output_dir={tmp_path}", "eval_strategy=no"])
    lines: list[str] = []
    run_recipe(recipe, ["mem"], say=lines.append)
    assert lines[0] == "mem: goes on from checkpoint-1"
    one, other = load_palm(root / "out" / "mem").state_dict(), load_palm(tmp_path / "mem").state_dict()
    assert all((one[name] == other[name]).all() for name in one)


def test_stage_out_of_order(recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'mem' and 'align' must come first"):
        run_recipe(load_recipe(write(recipe, tmp_path)), ["generate"])


def test_settings_of_later_stages_are_checked_first(recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe["stages"]["generate"]["generation_num_beams"] = 0
    with pytest.raises(ConfigError, match="generation_num_beams is 0"):
        run_recipe(load_recipe(write(recipe, tmp_path)))
    assert not (tmp_path / "out" / "mem" / "model.safetensors").exists()


def test_ablation_without_mem_and_with_contrastive_alignment(
    recipe: dict[str, Any], tmp_path: Path, studies_dir: Path
) -> None:
    recipe["model"]["config"] = {"alignment": "contrastive"}
    recipe["training"] |= {"skip_stages": ["mem"], "cache_pixel_values": True, "max_steps": 1}
    folders = run_recipe(load_recipe(write(recipe, tmp_path)))
    assert list(folders) == ["align", "generate"]
    assert load_palm(folders["generate"]).config.alignment == "contrastive"
    metadata = json.loads((folders["generate"] / "rrg_training.json").read_text())
    assert metadata["hyperparameters"]["skip_stages"] == ["mem"]
    assert metadata["previous_stage"]["last_evaluation"]["eval_contrastive_loss"] > 0


def test_models_from_backbones_and_from_scratch(recipe: dict[str, Any], tmp_path: Path, palm_dir: Path) -> None:
    backbones = {name: str(palm_dir / "backbones" / name) for name in ("vision", "text", "decoder")}
    recipe["model"] = {"backbones": backbones, "config": {"num_prototypes": 20}}
    loaded = load_recipe(write(recipe, tmp_path))
    one, processor = load_start(loaded, seed=1)
    again, _ = load_start(loaded, seed=1)
    assert one.config.num_prototypes == 20 and len(processor.tokenizer) == one.config.decoder_config.vocab_size
    assert all((value == again.state_dict()[name]).all() for name, value in one.state_dict().items())

    recipe["model"] = {
        "processor": str(palm_dir),
        "config": {
            "vision_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 56},
            "text_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 16,
            },
            "decoder_config": {"n_embd": 16, "n_layer": 1, "n_head": 2},
        },
    }
    scratch, processor = load_start(load_recipe(write(recipe, tmp_path)), seed=1)
    assert scratch.config.decoder_config.vocab_size == len(processor.tokenizer)
    assert scratch.config.text_config.vocab_size == len(processor.text_tokenizer)
    recipe["model"]["config"] = {"projection_dimm": 3}
    with pytest.raises(ConfigError, match=r"projection_dimm.*projection_dim"):
        load_start(load_recipe(write(recipe, tmp_path)), seed=1)


def test_missing_model_and_data(recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No model could be found"):
        run_recipe(load_recipe(write(recipe, tmp_path), [f"model.path={tmp_path / 'none'}"]))
    with pytest.raises(DataError, match="no such folder"):
        run_recipe(load_recipe(write(recipe, tmp_path), [f"train_dataset={tmp_path / 'none'}"]))
    with pytest.raises(DataError, match="no split 'dev'"):
        run_recipe(load_recipe(write(recipe, tmp_path), ["eval_split=dev"]))


def test_the_example_recipe_is_valid_and_follows_the_paper(tmp_path: Path) -> None:
    recipe = load_recipe(EXAMPLES / "configs" / "palm.yaml", ["bf16=false", "use_cpu=true", f"output_dir={tmp_path}"])
    rates = {stage: recipe.arguments(stage).learning_rate for stage in recipe.order}
    assert rates == {"mem": 1e-5, "align": 1e-5, "generate": 5e-5}
    assert all(recipe.arguments(stage).per_device_train_batch_size == 8 for stage in recipe.order)
    config = PalmConfig(**recipe.model["config"])
    assert {name: getattr(PalmConfig(), name) for name in recipe.model["config"]} == recipe.model["config"]
    assert config.alignment == "prototype"


def test_every_value_of_the_example_recipe_names_its_source() -> None:
    text = (EXAMPLES / "configs" / "palm.yaml").read_text()
    for line in text.splitlines():
        name, separator, _ = line.strip().partition(": ")
        if separator and name in {
            "learning_rate",
            "num_train_epochs",
            "per_device_train_batch_size",
            "optim",
            "section",
        }:
            assert "# paper" in line or "not stated in the paper" in line, line


@pytest.mark.parametrize("path", sorted((EXAMPLES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_files_are_valid(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert config.num_processes >= 1
    assert (config.distributed_type == "MULTI_GPU") == (config.num_processes > 1)


def test_training_arguments_are_public() -> None:
    import rrg_hf

    assert rrg_hf.PalmTrainingArguments is PalmTrainingArguments


BAD_SETTINGS = {
    "data.train_dataset=3": r"data\.train_dataset must be a text, not 3",
    "data.train_dataset=[a]": r"data\.train_dataset must be a text",
    "data.split=[a]": r"data\.split must be a text",
    "data.eval_split={a: 1}": r"data\.eval_split must be a text",
    "data.eval_dataset=true": r"data\.eval_dataset must be a text",
    "data.streaming=maybe": r"data\.streaming must be true or false, not 'maybe'",
    "data.streaming=1": r"data\.streaming must be true or false",
    "data.trian_dataset=x": "did you mean 'train_dataset'",
    "model.path=3": r"model\.path must be a text",
    "model.config=3": r"model\.config must be a block",
    "model.config=[1]": r"model\.config must be a block",
    "model.backbones=x": r"model\.backbones must be a block",
    "model.processor=3": r"model\.processor must be a text",
    "model.config.fusion_dropout=9": r"model\.config: .*fusion_dropout",
    "model.config.fusion_layers=7": r"model\.config: fusion_layers: a checkpoint keeps its shapes",
    "model.config.decoder_config={n_layer: x}": r"model\.config: .*n_layer",
    "model.config.vision_config={hiden_size: 4}": "did you mean 'hidden_size'",
    "model.config.training_stage=mem": "training_stage cannot be set",
    "model.config.bos_token_id=999999": r"bos_token_id is 999999 in the model's configuration",
    "model.processor=/nowhere": "No PalmProcessor could be loaded from '/nowhere'",
    "model=3": "`model` is a block",
    "data={split: train}": "`data` is a block",
    "data.eval_split=nosuch": "no split 'nosuch'",
    "data.streaming=true": "nobody knows the length",
    "model.config.fusion_dropout=a": "fusion_dropout",
    "model.config.num_prototypes=a": "num_prototypes",
    "model.config.alignment=none": "alignment",
    "model.config.fusion_droput=0.1": "fusion_dropout",
    "model.path=nowhere": "nowhere",
    "output_dir=3": "output_dir must be a text",
    "output_dir=": "output_dir is empty",
    "output_dir=''": "output_dir is empty",
    "resume_from_checkpoint=x": "goes on by itself",
    "do_train=true": "a recipe always trains",
    "stages.mem.skip_stages=[align]": r"stages\.mem has no setting 'skip_stages'",
    "stages.mem.seed=a": r"stages\.mem\.seed must be a whole number, not 'a'",
    "training.seed=a": r"training\.seed must be a whole number, not 'a'",
    "lr_scheduler_kwargs={a: 1}": "lr_scheduler_kwargs .* cannot be used",
    "optim=adamw_bnb_8bit": "bitsandbytes",
    "torch_compile_backend=inductr": "Did you mean 'inductor'",
    "metric_for_best_model=mem_loss": "stages.align: metric_for_best_model is 'mem_loss'",
    "skip_stages=[mem, align, generate]": "leaves no stage",
    "report_to=blah": "report_to names 'blah'",
    "report_to=[tensorbord]": "did you mean 'tensorboard'|Did you mean 'tensorboard'",
    "skip_stages=3": "skip_stages",
    "skip_stages=[mem, 3]": "skip_stages",
    "skip_stages=mme": "skip_stages",
    "learning_rate=fast": "learning_rate",
    "learning_rate=-1": "learning_rate",
    "learning_rate=.nan": "learning_rate",
    "num_train_epochs=two": "num_train_epochs",
    "max_steps=1.5": "max_steps",
    "seed=-1": "seed",
    "seed=true": "seed",
    "per_device_train_batch_size=0": "per_device_train_batch_size",
    "section=4": "section",
    "section=summary": "section",
    "cleaning=soap": "soap",
    "bf16=perhaps": "bf16",
    "optim=adamm": "adamm",
    "lr_scheduler_type=zigzag": "zigzag",
    "save_strategy=sometimes": "sometimes",
    "generation_max_new_tokens=100000": "100001 positions",
    "stages.generate.generation_num_beams=0": "generation_num_beams",
    "max_report_length=100000": "100000 positions",
    "stages.mem.vision_learning_rate=0": "vision_learning_rate",
    "deepspeed=x.json": "deepspeed",
}
# The only ones that the data itself must tell.
_FOUND_IN_DATA = ("data.eval_split=nosuch",)


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_setting_that_cannot_work_is_one_clear_error(
    setting: str, recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [setting]
    if setting == "data.streaming=true":
        changes.append("max_steps=-1")
    if setting not in _FOUND_IN_DATA:
        monkeypatch.setattr("rrg_hf.trainers.palm_recipe.load_data", lambda recipe: pytest.fail("data was loaded"))
    monkeypatch.setattr("rrg_hf.trainers.palm_recipe.load_palm", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises((ConfigError, CheckpointError, DataError), match=BAD_SETTINGS[setting]) as caught:
        run_recipe(load_recipe(write(recipe, tmp_path), changes))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_output_dir_that_cannot_be_written_is_refused_first(recipe: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in ("file", "file/below"):
        with pytest.raises(ConfigError, match="is a file"):
            run_recipe(load_recipe(write(recipe, tmp_path), [f"output_dir={tmp_path / place}"]))
    assert (tmp_path / "file").read_text() == "x"


def test_a_stream_cannot_be_cached(recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keeps a whole data set in memory"):
        run_recipe(load_recipe(write(recipe, tmp_path), ["cache_pixel_values=true", "streaming=true"]))


def test_a_recipe_made_in_python_is_checked_too(recipe: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="model must be a block of settings, not 3"):
        run_recipe(PalmRecipe(model=3, data=recipe["data"]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"training\.max_steps must be a whole number"):
        run_recipe(PalmRecipe(model=recipe["model"], data=recipe["data"], training={"max_steps": "two"}))
    with pytest.raises(ConfigError, match="has no setting 'allign'"):
        run_recipe(PalmRecipe(model=recipe["model"], data=recipe["data"]), ["allign"])


def test_models_that_cannot_be_built_are_refused_before_data(
    recipe: dict[str, Any], palm_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrg_hf.trainers.palm_recipe.load_data", lambda recipe: pytest.fail("data was loaded"))
    backbones = {name: str(palm_dir / "backbones" / name) for name in ("vision", "text", "decoder")}
    scratch = {"processor": str(palm_dir)}
    for model, message in (
        ({"backbones": {**backbones, "vision": str(tmp_path)}}, "cannot be built"),
        ({"backbones": {**backbones, "text": backbones["decoder"]}}, "is read from 'bert' or 'cxr-bert'"),
        ({"backbones": backbones, "config": {"fusion_dropout": 9}}, "fusion_dropout"),
        ({"backbones": backbones, "config": {"decoder_config": {}}}, "decoder_config cannot be set"),
        ({**scratch, "config": {"text_config": [1]}}, r"model\.config\.text_config must be a block"),
        ({**scratch, "config": {"decoder_config": {"n_layer": "x"}}}, "n_layer"),
        ({**scratch, "config": {"decoder_config": {"vocab_size": 5}}}, "tokenizer for the decoder has"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_recipe(load_recipe(write({**recipe, "model": model}, tmp_path)))


def test_settings_of_a_block_change_only_what_they_name(recipe: dict[str, Any], tmp_path: Path) -> None:
    loaded = load_recipe(write(recipe, tmp_path), ["model.config.decoder_config.resid_pdrop=0.25"])
    model, _ = load_start(loaded, seed=0)
    assert model.config.decoder_config.resid_pdrop == 0.25
    assert model.config.decoder_config.n_embd == load_palm(recipe["model"]["path"]).config.decoder_config.n_embd
