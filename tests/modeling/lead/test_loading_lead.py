"""Reading and writing LEAD checkpoints: old and new layouts of backbones, tied weights, quantisation, devices."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from rrg_hf.modeling.lead.layers_lead import LeadZeroLinear
from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, PLAIN_CLASSES, backbone_config, make_backbone, make_batch, perturb

FAMILIES = tuple(LEAD_CLASSES)
ROWS = [([(2, 2)], 7), ([(2, 3), (2, 2)], 4), ([], 9)]
LOGGERS = ("rrg_hf.modeling.lead.modeling_lead", "transformers.modeling_utils")


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_backbone(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.fixture
def messages() -> Any:
    """What the loader says; transformers' loggers do not pass records on, so caplog sees none."""

    class Keep(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.lines.append(record.getMessage())

    handler = Keep()
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)
    yield handler.lines
    for name in LOGGERS:
        logging.getLogger(name).removeHandler(handler)


def load(family: str, folder: Path, **kwargs: Any) -> Any:
    return LEAD_CLASSES[family].from_pretrained(folder, lead_config=LEAD_TINY, **kwargs).eval()


def rewrite(folder: Path, target: Path, keep: Any) -> Path:
    """A copy whose weights went through `keep` (name -> new name or None)."""
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    renamed = {keep(name): value for name, value in weights.items() if keep(name) is not None}
    save_file(renamed, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_backbone_is_one_line(family: str, backbones: dict[str, Path], messages: list[str]) -> None:
    model, info = LEAD_CLASSES[family].from_pretrained(
        backbones[family], lead_config=LEAD_TINY, output_loading_info=True
    )
    assert len(messages) == 1 and "plain backbone; LEAD's 41 tensors start fresh" in messages[0]
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert sum(".lead_" in name for name in model.state_dict()) == 41


@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_parts_are_initialised(family: str, backbones: dict[str, Path]) -> None:
    """Never left as uninitialised memory: twice the same seed is twice the same model, and scales are as designed."""
    models = []
    for _ in range(2):
        torch.manual_seed(11)
        models.append(load(family, backbones[family]))
    first, second = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    experts = models[0].model.lead_experts.experts
    width = experts.weight_1.shape[1]
    assert experts.weight_1.std().item() == pytest.approx((2 / width) ** 0.5, rel=0.1)
    aggregation = models[0].model.lead_experts.aggregation
    assert aggregation.weight.std().item() == pytest.approx(aggregation.in_features**-0.5, rel=0.1)
    assert not experts.bias_1.any() and not experts.bias_2.any() and not experts.bias_3.any()
    for name, module in models[0].named_modules():
        if isinstance(module, LeadZeroLinear):
            assert not module.weight.any() and not module.bias.any(), name
        elif ".lead_" in name and isinstance(module, torch.nn.Linear):
            assert module.weight.abs().sum() > 0, name
        elif ".lead_" in name and isinstance(module, torch.nn.LayerNorm):
            assert (module.weight == 1).all() and not module.bias.any(), name
    assert all(not layer.beta.any() for layer in models[0].model.lead_fusion.layers)


@pytest.mark.parametrize("family", ["internvl", "mistral3"])
def test_old_and_new_layouts_of_the_hub(family: str, backbones: dict[str, Path], tmp_path: Path) -> None:
    """Published checkpoints say language_model.model.*, transformers now says model.language_model.*."""
    names = list(load_file(backbones[family] / "model.safetensors"))
    assert any(name.startswith("language_model.model.") for name in names), "the tiny ones are in the old layout"

    def new(name: str) -> str:
        if name == "language_model.lm_head.weight":
            return "lm_head.weight"
        return "model." + name.replace("language_model.model.", "language_model.")

    renamed = rewrite(backbones[family], tmp_path / "new", new)
    batch = make_batch(family, ROWS)
    with torch.no_grad():
        expected = PLAIN_CLASSES[family].from_pretrained(backbones[family]).eval()(**batch).logits
        for folder in (backbones[family], renamed):
            model, info = LEAD_CLASSES[family].from_pretrained(folder, lead_config=LEAD_TINY, output_loading_info=True)
            assert not info["unexpected_keys"] and not info["missing_keys"]
            assert torch.equal(model.eval()(**batch).logits, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_tied_embeddings(family: str, tmp_path: Path) -> None:
    """As in Qwen3-VL-2B and 4B, whose files hold no lm_head."""
    config = backbone_config(family, tie_word_embeddings=True)
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    plain = PLAIN_CLASSES[family](config).eval()
    plain.save_pretrained(tmp_path / "plain")
    assert not any("lm_head" in name for name in load_file(tmp_path / "plain" / "model.safetensors"))
    model = load(family, tmp_path / "plain")
    batch = make_batch(family, ROWS)
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, plain(**batch).logits)
        assert model.lm_head.weight is model.get_input_embeddings().weight
        perturb(model).save_pretrained(tmp_path / "lead")
        again = LEAD_CLASSES[family].from_pretrained(tmp_path / "lead").eval()
        assert again.lm_head.weight is again.get_input_embeddings().weight
        assert torch.equal(again(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_that_lacks_weights_is_reported(
    family: str, backbones: dict[str, Path], tmp_path: Path, messages: list[str]
) -> None:
    load(family, backbones[family]).save_pretrained(tmp_path / "whole")
    for number, lost in enumerate(("lead_fusion.layers.1.beta", "lead_")):
        folder = rewrite(
            tmp_path / "whole", tmp_path / f"lost{number}", lambda name, lost=lost: None if lost in name else name
        )
        messages.clear()
        _, info = LEAD_CLASSES[family].from_pretrained(folder, output_loading_info=True)
        assert info["missing_keys"] and all(lost in name for name in info["missing_keys"])
        assert any("LOAD REPORT" in line and "MISSING" in line for line in messages)
        assert not any("plain backbone" in line for line in messages)
    messages.clear()
    LEAD_CLASSES[family].from_pretrained(tmp_path / "whole")
    assert not messages


def test_a_damaged_backbone_is_reported(backbones: dict[str, Path], tmp_path: Path, messages: list[str]) -> None:
    lost = "model.language_model.layers.1.mlp.up_proj.weight"
    folder = rewrite(backbones["qwen3_vl"], tmp_path / "lost", lambda name: None if name == lost else name)
    _, info = LEAD_CLASSES["qwen3_vl"].from_pretrained(folder, lead_config=LEAD_TINY, output_loading_info=True)
    assert info["missing_keys"] == {lost}
    assert any("LOAD REPORT" in line and lost in line for line in messages)


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_of_one_model_start_another(
    family: str, backbones: dict[str, Path], tmp_path: Path, messages: list[str]
) -> None:
    """Experts trained alone, then with fusion: what is new is reported, what was learnt is kept."""
    first = LEAD_CLASSES[family].from_pretrained(backbones[family], lead_config={**LEAD_TINY, "fusion": "none"})
    perturb(first).save_pretrained(tmp_path)
    messages.clear()
    second = LEAD_CLASSES[family].from_pretrained(tmp_path, lead_config={"fusion": "gate"}).eval()
    assert any("lead_fusion" in line and "MISSING" in line for line in messages)
    for name, value in first.model.lead_experts.named_parameters():
        assert torch.equal(value, second.model.lead_experts.get_parameter(name)), name
    batch = make_batch(family, ROWS)
    with torch.no_grad():
        torch.testing.assert_close(second(**batch).logits, first.eval()(**batch).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_pickle(family: str, backbones: dict[str, Path]) -> None:
    model = perturb(load(family, backbones[family]))
    other = pickle.loads(pickle.dumps(model))
    batch = make_batch(family, ROWS)
    with torch.no_grad():
        assert torch.equal(other(**batch).logits, model(**batch).logits)
        perturb(other, seed=9)
        assert not torch.equal(other(**batch).logits, model(**batch).logits), "hooks must follow the copy"


@pytest.mark.parametrize("family", FAMILIES)
def test_placement_and_precision(family: str, backbones: dict[str, Path], tmp_path: Path) -> None:
    batch = make_batch(family, ROWS)
    perturb(load(family, backbones[family])).save_pretrained(tmp_path)
    with torch.no_grad():
        expected = LEAD_CLASSES[family].from_pretrained(tmp_path).eval()(**batch)
        placed = LEAD_CLASSES[family].from_pretrained(tmp_path, device_map={"": "cpu"}).eval()
        assert torch.equal(placed(**batch).logits, expected.logits)
        # a device for every child, and hooks of accelerate around each
        parts = {name: "cpu" for name, _ in placed.model.named_children()}
        split = {"lm_head": "cpu", **{f"model.{name}": device for name, device in parts.items()}}
        split.pop("model.language_model")
        for name, _ in placed.model.language_model.named_children():
            split[f"model.language_model.{name}"] = "cpu"
        spread = LEAD_CLASSES[family].from_pretrained(tmp_path, device_map=split).eval()
        assert torch.equal(spread(**batch).logits, expected.logits)
        for dtype in (torch.float16, torch.bfloat16):
            half = LEAD_CLASSES[family].from_pretrained(tmp_path, dtype=dtype).eval()
            assert half.lm_head.weight.dtype == dtype
            outputs = half(**batch)
            assert outputs.logits.dtype == dtype and outputs.logits.isfinite().all()
            half.generate(**batch, max_new_tokens=2, suppress_tokens=[5, 6, 7, 8])
        plain = PLAIN_CLASSES[family].from_pretrained(backbones[family], dtype=torch.bfloat16).eval()
        fresh = load(family, backbones[family], dtype=torch.bfloat16)
        assert torch.equal(fresh(**batch).logits, plain(**batch).logits)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("skip", [None, ["lm_head"], ["visual", "vision_tower"]], ids=str)
def test_quantizers_leave_lead_alone(family: str, skip: list[str] | None, backbones: dict[str, Path]) -> None:
    """What bitsandbytes would replace, asked of the code that decides it; the kernels need a GPU build."""
    model = load(family, backbones[family])
    config = BitsAndBytesConfig(load_in_4bit=True, llm_int8_skip_modules=skip)
    kept = HfQuantizer.get_modules_to_not_convert(model, config.llm_int8_skip_modules, model._keep_in_fp32_modules)
    replaced = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and should_convert_module(name, kept)
    ]
    assert any("language_model.layers.0.self_attn.q_proj" in name for name in replaced)
    assert not any("lead_" in name for name in replaced)
    assert any(isinstance(module, torch.nn.Linear) for module in model.model.lead_experts.modules())


def test_quantization_config_survives_the_configs(backbones: dict[str, Path], tmp_path: Path) -> None:
    """A 4-bit backbone's own config.json keeps its quantization_config when it becomes ours."""
    shutil.copytree(backbones["qwen3_vl"], tmp_path / "plain")
    path = tmp_path / "plain" / "config.json"
    content = json.loads(path.read_text())
    content["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True).to_dict()
    path.write_text(json.dumps(content, default=str))
    config = LEAD_CLASSES["qwen3_vl"].config_class.from_pretrained(tmp_path / "plain", lead_config=LEAD_TINY)
    assert config.quantization_config["load_in_4bit"] is True
    with pytest.raises(ImportError, match="bitsandbytes"):
        LEAD_CLASSES["qwen3_vl"].from_pretrained(tmp_path / "plain")
