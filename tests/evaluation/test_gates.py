"""Gates over a report: the right position for every token, words, prompts, and models without a gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rrg_hf.errors import ConfigError
from rrg_hf.evaluation import ReportGates, report_gates
from rrg_hf.evaluation.gates import gates_of_tokens
from tests.lead_model import make_lead_model
from tests.tiny_palm import make_tiny_palm

REPORT = "There is a left effusion. No pneumothorax."
IMAGE = (np.arange(64 * 64) % 251).astype(np.uint8).reshape(64, 64)
FAMILIES = ("qwen3_vl", "internvl", "mistral3")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    folder = tmp_path_factory.mktemp("gates")
    return {family: make_lead_model(folder / family, family) for family in FAMILIES}


def hooked_gates(model: Any, inputs: dict[str, Any]) -> np.ndarray:
    """(L, T) recomputed from what every fusion layer returns, (1, T, d) each."""
    seen: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output[1]))
        for layer in model.model.lead_fusion.layers
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return torch.stack([gate[0].double().mean(-1) for gate in seen]).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_has_the_gate_of_the_position_that_wrote_it(family: str, models: dict[str, tuple[Any, Any]]) -> None:
    model, processor = models[family]
    found = report_gates(model, processor, IMAGE, f"  {REPORT}\n", indication="Cough.")
    assert found is not None and found.report == REPORT
    prompt = processor.build_inputs(images=[[IMAGE]], indication=["Cough."])
    ids = processor.tokenizer(REPORT, add_special_tokens=False)["input_ids"]
    assert found.gates.shape == (3, len(ids)) and found.gates.dtype == np.float32
    start = prompt["input_ids"].shape[1]
    inputs = dict(processor.build_inputs(images=[[IMAGE]], indication=["Cough."], report=[REPORT]))
    assert inputs["input_ids"][0, start : start + len(ids)].tolist() == ids
    expected = hooked_gates(model, {name: value for name, value in inputs.items() if name != "labels"})
    # the last position of the prompt writes the first token
    assert np.allclose(found.gates, expected[:, start - 1 : start - 1 + len(ids)], atol=1e-6)
    assert not np.allclose(found.gates, expected[:, start : start + len(ids)], atol=1e-3)
    assert [REPORT[slice(*word)] for word in found.words] == REPORT.split()
    assert np.allclose(found.layer_means, found.gates.mean(1))


def test_while_generating_the_gates_are_the_same(models: dict[str, tuple[Any, Any]]) -> None:
    """Step by step with a cache, as the report was written."""
    model, processor = models["qwen3_vl"]
    prompt = processor.build_inputs(images=[[IMAGE]])
    ids = processor.tokenizer(REPORT, add_special_tokens=False, return_tensors="pt")["input_ids"]
    steps = []
    hooks = [
        layer.register_forward_hook(lambda _module, _inputs, output: steps.append(output[1][0, -1].mean()))
        for layer in model.model.lead_fusion.layers
    ]
    forced = iter(ids[0].tolist())

    def force(_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = torch.full_like(scores, -torch.inf)
        chosen[:, next(forced)] = 0.0
        return chosen

    written = model.generate(**prompt, max_new_tokens=ids.shape[1], do_sample=False, logits_processor=[force])
    for hook in hooks:
        hook.remove()
    assert written[0, -ids.shape[1] :].tolist() == ids[0].tolist()
    by_step = torch.stack(steps).reshape(ids.shape[1], 3).T.numpy()
    found = report_gates(model, processor, IMAGE, REPORT)
    assert found is not None and np.allclose(found.gates, by_step, atol=1e-5)


def test_words_are_means_over_their_tokens() -> None:
    report = "No  pleural\neffusion."
    tokens = ((0, 2), (2, 3), (3, 7), (7, 11), (11, 12), (12, 20), (20, 21))
    gates = np.arange(14, dtype=np.float32).reshape(2, 7)
    found = gates_of_tokens(report, tokens, gates)
    assert found is not None
    assert [report[slice(*word)] for word in found.words] == ["No", "pleural", "effusion."]
    expected = [[0, 2.5, 5.5], [7, 9.5, 12.5]]  # tokens of blanks belong to no word
    assert found.word_gates.tolist() == expected
    assert found.strongest_words(2) == [("effusion.", 9.0), ("pleural", 6.0)]
    assert gates_of_tokens("  ", ((0, 2),), np.zeros((2, 1))) is None


def test_prompted_observations_are_part_of_the_prompt(models: dict[str, tuple[Any, Any]]) -> None:
    model, processor = models["qwen3_vl"]
    plain, prompted = (report_gates(model, processor, IMAGE, REPORT, observations=o) for o in (None, ["Edema"]))
    assert plain is not None and prompted is not None and not np.allclose(plain.gates, prompted.gates)


def test_wrapped_models_and_scalar_gates(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model, processor = make_lead_model(tmp_path / "scalar", gate_type="scalar")
    plain = report_gates(model, processor, IMAGE, REPORT)
    wrapped = report_gates(get_peft_model(model, LoraConfig(target_modules=["q_proj"])), processor, IMAGE, REPORT)
    assert isinstance(plain, ReportGates) and isinstance(wrapped, ReportGates)
    assert np.allclose(plain.gates, wrapped.gates, atol=1e-6), "a fresh adapter changes nothing"


@pytest.mark.parametrize("fusion", ["add", "none"])
def test_models_without_a_gate_have_no_gates(fusion: str, tmp_path: Path) -> None:
    assert report_gates(*make_lead_model(tmp_path / fusion, fusion=fusion), IMAGE, REPORT) is None


def test_no_report_and_no_experts(models: dict[str, tuple[Any, Any]], tmp_path: Path) -> None:
    assert report_gates(*models["qwen3_vl"], IMAGE, "  \n") is None
    with pytest.raises(ConfigError, match="no pathology experts"):
        report_gates(*make_tiny_palm(tmp_path / "palm"), IMAGE, REPORT)
