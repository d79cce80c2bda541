"""ReportGenerationPipeline and load_report_model on LEAD: three backbones, prompts, expert prompting, adapters."""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from rrg_hf.errors import CheckpointError, ConfigError, DataError, ImageReadError
from rrg_hf.pipeline import ReportGenerationPipeline, load_report_model, weights_sha256
from tests.lead_model import make_adapter, make_lead_model
from tests.tiny_lead import LEAD_CLASSES, PROCESSOR_CLASSES

FAMILIES = sorted(LEAD_CLASSES)
INDICATIONS = ["Cough and fever after surgery, question of an effusion.", None, "Pain.", float("nan"), "N/A"]
CONTROL = {"qwen3_vl": "<|im_end|>", "internvl": "<IMG_CONTEXT>", "mistral3": "[INST]"}


def picture(seed: int, size: int = 70) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size), dtype=np.uint8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Whole LEAD checkpoints by family, each with its plain backbone beside it."""
    root = tmp_path_factory.mktemp("lead")
    for family in FAMILIES:
        make_lead_model(root / family, family)
    return {family: root / family for family in FAMILIES}


@pytest.fixture(scope="module", params=FAMILIES)
def write(request: pytest.FixtureRequest, folders: dict[str, Path]) -> ReportGenerationPipeline:
    return transformers.pipeline(
        "report-generation", model=str(folders[request.param]), device="cpu", max_new_tokens=8
    )


def by_hand(
    write: ReportGenerationPipeline,
    image: np.ndarray,
    indication: str | None = None,
    observations: list[str] | None = None,
    **kwargs: Any,
) -> list[str]:
    """The report without the pipeline: prompt, generate, decode."""
    inputs = write.processor.build_inputs(
        images=[[Image.fromarray(image)]],
        indication=[indication],
        observations=None if observations is None else [observations],
    )
    ids = write.model.generate(**inputs, **{"max_new_tokens": 8, **kwargs})
    return [" ".join(text.split()) for text in write.processor.decode_reports(ids, inputs)]


def test_it_gives_what_generate_gives(write: ReportGenerationPipeline) -> None:
    assert isinstance(write, ReportGenerationPipeline)
    texts = []
    for seed in range(2):
        for indication in (None, "Cough."):
            texts.append(write(picture(seed), indication=indication)[0]["report"])
            assert texts[-1] == by_hand(write, picture(seed), indication)[0]
    assert len(set(texts)) == 4  # equal reports mean something only if reports can differ
    several = write(picture(0), num_beams=3, num_return_sequences=3)
    expected = by_hand(write, picture(0), num_beams=3, num_return_sequences=3)
    assert [entry["report"] for entry in several] == expected


def test_prompts_of_different_length_in_a_batch_equal_single_calls(write: ReportGenerationPipeline) -> None:
    inputs = [{"image": picture(seed, 60 + 10 * seed), "indication": text} for seed, text in enumerate(INDICATIONS)]
    lengths = [write.processor.build_batch([write.preprocess(item)])["input_ids"].shape[1] for item in inputs]
    assert len(set(lengths)) == 3
    single = [write(item) for item in inputs]
    for batch_size in (1, 2, 5):
        assert write(inputs, batch_size=batch_size) == single
        assert write(inputs, batch_size=batch_size, num_beams=2) == [write(item, num_beams=2) for item in inputs]
    assert list(write((item for item in inputs), batch_size=2)) == single
    assert write.write([write.preprocess(item) for item in inputs]) == [entry[0]["report"] for entry in single]
    images = [item["image"] for item in inputs]
    assert write.write_studies(images, inputs) == [entry[0]["report"] for entry in single]


def test_of_a_study_the_first_frontal_image_is_read(write: ReportGenerationPipeline) -> None:
    row = {"study_id": "s", "images": [picture(9), picture(1), picture(2)], "views": ["lateral", "frontal", "frontal"]}
    assert write({**row, "indication": "Cough."}) == write(picture(1), indication="Cough.")
    with pytest.raises(DataError, match="'s' has no image"):
        write({"study_id": "s", "images": []})


def test_text_that_would_change_the_prompt_is_refused(
    request: pytest.FixtureRequest, write: ReportGenerationPipeline
) -> None:
    token = next(CONTROL[family] for family in FAMILIES if isinstance(write.processor, PROCESSOR_CLASSES[family]))
    with pytest.raises(ImageReadError, match="holds the control tokens"):
        write.preprocess({"image": picture(0), "indication": f"Cough {token}"})


def test_decoding_is_the_checkpoints_unless_said_otherwise(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3_vl"], folder)
    file = folder / "generation_config.json"
    own = {"num_beams": 2, "repetition_penalty": 1.05, "length_penalty": 1.0, "do_sample": False}
    file.write_text(json.dumps({**json.loads(file.read_text()), **own}))
    loaded = load_report_model(folder)
    write = ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu", max_new_tokens=8)
    plain = {"num_beams": 2, "max_new_tokens": 8, "do_sample": False, "repetition_penalty": 1.05}
    assert write.decoding == plain
    pictures = [picture(seed) for seed in range(6)]  # some random model's beams may find the greedy report
    reports = [write(image)[0]["report"] for image in pictures]
    expected = [by_hand(write, image, num_beams=2, repetition_penalty=1.05)[0] for image in pictures]
    greedy = [by_hand(write, image, num_beams=1, repetition_penalty=1.0)[0] for image in pictures]
    assert reports == expected != greedy
    explicit = ReportGenerationPipeline(
        loaded.model, loaded.processor, device="cpu", max_new_tokens=8, num_beams=1, repetition_penalty=1.0
    )
    assert explicit.decoding == {"num_beams": 1, "max_new_tokens": 8, "do_sample": False}
    assert [explicit(image)[0]["report"] for image in pictures] == greedy
    assert [write(image, num_beams=1, repetition_penalty=1.0)[0]["report"] for image in pictures] == greedy
    longer = ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu")
    assert longer.decoding["max_new_tokens"] == longer.default_max_new_tokens == 128
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_new_tokens": 5}))
    loaded = load_report_model(folder)
    assert ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu").default_max_new_tokens == 5


def test_the_prompt_takes_its_share_of_the_positions(folders: dict[str, Path], tmp_path: Path) -> None:
    loaded = load_report_model(folders["qwen3_vl"])
    write = ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu")
    prompt = write.processor.build_batch([write.preprocess(picture(0))])["input_ids"].shape[1]
    room = 512 - prompt
    report = write(picture(0), max_new_tokens=room, suppress_tokens=[0, 1])[0]["report"]
    assert report
    with pytest.raises(ConfigError, match=f"room for {room} behind a prompt of {prompt} tokens. Use at most {room}"):
        write(picture(0), max_new_tokens=room + 1)
    batch = [picture(1), {"image": picture(0), "indication": "Cough and fever."}]
    with pytest.raises(ConfigError, match="behind a prompt of"):
        write(batch, max_new_tokens=room, batch_size=2)
    shutil.copytree(folders["qwen3_vl"], tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ConfigError, match="max_new_tokens is 600"):
        load_report_model(tmp_path / "model", max_new_tokens=600)


@pytest.mark.parametrize("family", FAMILIES)
def test_expert_prompting_predicts_first_and_writes_what_it_saw(family: str, tmp_path: Path) -> None:
    make_lead_model(tmp_path / "model", family, fusion="none", expert_prompting=True, expert_threshold=0.6)
    loaded = load_report_model(tmp_path / "model")
    write = ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu", max_new_tokens=8)
    images = [picture(seed) for seed in range(4)]
    named = []
    for image in images:  # one at a time, by the experts' probabilities
        inputs = write.processor.build_inputs(images=[[Image.fromarray(image)]])
        with torch.no_grad():
            probabilities = write.model(**inputs).expert_logits[0].sigmoid()
        names = [
            name
            for name, value in zip(write.model.config.lead_config.expert_names, probabilities, strict=True)
            if value >= 0.6
        ]
        named.append([name for name in names if name != "No Finding"] or names)
    assert len({len(names) for names in named}) > 1  # so that prompts in the batch differ in length
    expected = [by_hand(write, image, "Cough.", names)[0] for image, names in zip(images, named, strict=True)]
    inputs = [{"image": image, "indication": "Cough."} for image in images]
    assert [write(item)[0]["report"] for item in inputs] == expected
    assert [entry[0]["report"] for entry in write(inputs, batch_size=4)] == expected
    assert expected != [by_hand(write, image, "Cough.")[0] for image in images]


def test_what_load_report_model_says_of_a_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["internvl"], folder)
    record = {"datasets": {"train": {"sources": ["phantom"]}}, "previous_stage": None, "method": "lead"}
    (folder / "rrg_training.json").write_text(json.dumps(record))
    loaded = load_report_model(folder)
    assert (loaded.name, loaded.sources, loaded.phantom_only, loaded.stage) == ("model", ("phantom",), True, None)
    assert loaded.revision == weights_sha256(folder) == weights_sha256(folders["internvl"])
    assert not loaded.model.training


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_backbones_and_incomplete_folders_are_refused(
    family: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(
        CheckpointError, match=f"of '{family}', which writes no reports here.*Or load it with its LEAD"
    ):
        load_report_model(folders[family].with_name(f"{family}_plain"))
    for name in ("weights", "tokenizer"):
        shutil.copytree(folders[family], tmp_path / name)
    file = tmp_path / "weights" / "model.safetensors"
    weights = load_file(file)
    kept = {key: value for key, value in weights.items() if "lead_experts" not in key}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"incomplete: {len(weights) - len(kept)} are missing.*lead_experts"):
        load_report_model(tmp_path / "weights")
    for path in (tmp_path / "tokenizer").glob("tokenizer*"):
        path.unlink()
    with pytest.raises(CheckpointError):
        load_report_model(tmp_path / "tokenizer")


def test_processors_of_other_models_are_refused(folders: dict[str, Path]) -> None:
    """What `transformers.pipeline` makes of an adapter's folder: the plain backbone."""
    loaded = load_report_model(folders["qwen3_vl"])
    with pytest.raises(ConfigError, match="processor of a PALM or LEAD model, got a Token"):
        ReportGenerationPipeline(loaded.model, loaded.processor.tokenizer, device="cpu")


def adapter_folder(base: Path, folder: Path, family: str = "qwen3_vl", **lead: Any) -> Any:
    model = make_adapter(base, folder, family, **lead)
    PROCESSOR_CLASSES[family].from_pretrained(base, image_size=64, prompt="Write.").save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompting", [False, True])
def test_an_adapter_writes_what_its_merged_model_writes(
    family: str, prompting: bool, folders: dict[str, Path], tmp_path: Path
) -> None:
    base = folders[family].with_name(f"{family}_plain")
    wrapped = adapter_folder(base, tmp_path / "adapter", family, expert_prompting=prompting)
    loaded = load_report_model(tmp_path / "adapter")
    assert type(loaded.model) is LEAD_CLASSES[family] and loaded.name == "adapter"
    write = ReportGenerationPipeline(loaded.model, loaded.processor, device="cpu", max_new_tokens=8)
    reports = write([picture(seed) for seed in range(3)], batch_size=2)
    kept = ReportGenerationPipeline(wrapped, loaded.processor, device="cpu", max_new_tokens=8)
    assert kept([picture(seed) for seed in range(3)], batch_size=2) == reports
    loaded.model.save_pretrained(tmp_path / "merged")
    loaded.processor.save_pretrained(tmp_path / "merged")
    merged = load_report_model(tmp_path / "merged")
    again = ReportGenerationPipeline(merged.model, merged.processor, device="cpu", max_new_tokens=8)
    assert again([picture(seed) for seed in range(3)], batch_size=2) == reports


def test_the_revision_of_an_adapter_follows_its_base_too(folders: dict[str, Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(folders["qwen3_vl"].with_name("qwen3_vl_plain"), base)
    adapter_folder(base, tmp_path / "adapter")
    first = load_report_model(tmp_path / "adapter").revision
    assert first == weights_sha256(tmp_path / "adapter") and first.startswith("sha256:")
    for file in (base / "model.safetensors", tmp_path / "adapter" / "adapter_model.safetensors"):
        before = file.read_bytes()
        weights = load_file(file)
        key = next(name for name in sorted(weights) if name.endswith("weight"))
        save_file({**weights, key: weights[key] + 1}, file, metadata={"format": "pt"})
        assert weights_sha256(tmp_path / "adapter") != first
        file.write_bytes(before)
    assert weights_sha256(tmp_path / "adapter") == first


def test_an_adapter_without_its_base_or_peft_is_one_clear_error(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    shutil.copytree(folders["qwen3_vl"].with_name("qwen3_vl_plain"), base)
    adapter_folder(base, tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    content = json.loads(config.read_text())

    real_import = builtins.__import__

    def without_peft(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return real_import(name, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without_peft)
        with pytest.raises(CheckpointError, match="pip install peft"):
            load_report_model(tmp_path / "adapter")
    config.write_text(json.dumps({**content, "base_model_name_or_path": None}))
    with pytest.raises(CheckpointError, match="does not say which model it was trained on"):
        load_report_model(tmp_path / "adapter")
    config.write_text("{")
    with pytest.raises(CheckpointError, match="adapter cannot be loaded"):
        load_report_model(tmp_path / "adapter")
    config.write_text(json.dumps(content))
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="damaged"):
        load_report_model(tmp_path / "adapter")
    shutil.rmtree(base)
    with pytest.raises(CheckpointError, match=r"is an adapter of .*base, which cannot be found.*adapter_config\.json"):
        load_report_model(tmp_path / "adapter")
