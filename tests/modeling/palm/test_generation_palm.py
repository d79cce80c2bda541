"""Writing reports with PalmForReportGeneration.generate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from tests.modeling.palm.conftest import make_lively
from tests.tiny_palm import make_tiny_palm

DECODING: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False, "num_beams": 1},
    "beams": {"num_beams": 3, "length_penalty": 1.0},
    "beams_penalty": {"num_beams": 2, "repetition_penalty": 1.3},
    "several_beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "top_k": 20, "num_return_sequences": 2},
}
LENGTH = 10


@pytest.fixture(scope="module", params=["cross_attention", "prefix"])
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PalmForReportGeneration:
    model = make_tiny_palm(tmp_path_factory.mktemp(request.param), decoder_input=request.param, projection_dim=24)[0]
    return make_lively(model).eval()


def write(model: PalmForReportGeneration, inputs: dict[str, torch.Tensor], **settings: Any) -> torch.Tensor:
    torch.manual_seed(0)
    return model.generate(**inputs, max_new_tokens=LENGTH, **settings)


@pytest.mark.parametrize("name", DECODING)
def test_cache_changes_nothing(
    writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable, name: str
) -> None:
    inputs = inference_keys(batch)
    cached = write(writer, inputs, use_cache=True, **DECODING[name])
    plain = write(writer, inputs, use_cache=False, **DECODING[name])
    assert torch.equal(cached, plain)
    returned = DECODING[name].get("num_return_sequences", 1)
    assert cached.shape[0] == 3 * returned
    assert (cached[:, 0] == writer.config.bos_token_id).all()
    assert len(set(cached[:, 1:].flatten().tolist())) > 4, "the test model must write something to compare"


@pytest.mark.parametrize("name", ["greedy", "beams", "beams_penalty", "several_beams"])
def test_batch_equals_single(
    writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable, name: str
) -> None:
    """Also for the second study, which has no indication and is run without the keys at all."""
    inputs = inference_keys(batch)
    together = write(writer, inputs, **DECODING[name])
    returned = DECODING[name].get("num_return_sequences", 1)
    pad = writer.generation_config.pad_token_id
    assert len({tuple(row.tolist()) for row in together}) >= 3, "each image must get a report of its own"
    for row in range(3):
        alone = {key: value[row : row + 1] for key, value in inputs.items()}
        length = int(alone["indication_attention_mask"].sum())
        if length:
            alone = {key: value[:, :length] if "indication" in key else value for key, value in alone.items()}
        else:
            alone = {"pixel_values": alone["pixel_values"]}
        single = write(writer, alone, **DECODING[name])
        expected = together[row * returned : (row + 1) * returned]
        width = single.shape[1]
        assert torch.equal(single, expected[:, :width])
        assert (expected[:, width:] == pad).all()


def test_greedy_is_the_argmax_of_the_forward_pass(
    writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable
) -> None:
    inputs = inference_keys(batch)
    ids = write(writer, inputs, **DECODING["greedy"], eos_token_id=None, suppress_tokens=[])
    logits = writer(**inputs, input_ids=ids).logits
    assert torch.equal(logits[:, :-1].argmax(-1), ids[:, 1:])


def test_scores_match_teacher_forcing(
    writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable
) -> None:
    inputs = inference_keys(batch)
    output = write(writer, inputs, output_logits=True, return_dict_in_generate=True, do_sample=False)
    logits = writer(**inputs, input_ids=output.sequences[:, :-1]).logits
    torch.testing.assert_close(torch.stack(output.logits, dim=1), logits, rtol=1e-4, atol=1e-3)


def test_image_is_encoded_once(
    writer: PalmForReportGeneration,
    batch: dict[str, torch.Tensor],
    inference_keys: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    original = writer.model.vision_model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        sizes.append(kwargs["pixel_values"].shape[0])
        return original(*args, **kwargs)

    monkeypatch.setattr(writer.model.vision_model, "forward", counting)
    write(writer, inference_keys(batch), num_beams=3, num_return_sequences=3)
    assert sizes == [3], "one pass over the images, before they are repeated for beams"


def test_given_memory_equals_given_image(
    writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable
) -> None:
    inputs = inference_keys(batch)
    memory, mask = writer.model.encode(**inputs)
    expected = write(writer, inputs, num_beams=2)
    given = write(writer, {"encoder_hidden_states": memory, "encoder_attention_mask": mask}, num_beams=2)
    assert torch.equal(given, expected)


def test_left_padded_prompts_equal_single(
    writer: PalmForReportGeneration,
    batch: dict[str, torch.Tensor],
    inference_keys: Callable,
    processor: PalmProcessor,
) -> None:
    """Prompts of different lengths: the processor pads on the left, and each row goes on as it would alone."""
    inputs = {**inference_keys(batch)}
    texts = ["The heart", "No pneumothorax or focal consolidation", "Mild"]
    prompts = dict(processor(text=texts))
    assert prompts["attention_mask"][0, 0] == 0 and prompts["attention_mask"][:, -1].all()
    together = write(writer, inputs | prompts, do_sample=False)
    width = prompts["input_ids"].shape[1]
    for row, text in enumerate(texts):
        alone = {key: value[row : row + 1] for key, value in inputs.items()} | dict(processor(text=text))
        start = alone["input_ids"].shape[1]
        single = write(writer, alone, do_sample=False)[0, start:]
        assert torch.equal(together[row, width : width + len(single)], single)


def test_generation_config_decides_bos(
    writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable
) -> None:
    config = copy.deepcopy(writer.generation_config)
    config.bos_token_id = 5
    ids = write(writer, inference_keys(batch), generation_config=config)
    assert (ids[:, 0] == 5).all()
    assert (write(writer, inference_keys(batch), bos_token_id=7)[:, 0] == 7).all()


def test_stops_at_eos_and_pads(
    writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable
) -> None:
    free = write(writer, inference_keys(batch), do_sample=False, eos_token_id=None)
    stop = int(free[0, 3])
    ids = write(writer, inference_keys(batch), do_sample=False, eos_token_id=stop, pad_token_id=0)
    position = free[0, 1:].tolist().index(stop) + 1
    assert ids[0, : position + 1].tolist() == free[0, : position + 1].tolist()
    assert (ids[0, position + 1 :] == 0).all()


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}])
def test_no_warning_about_padding(
    writer: PalmForReportGeneration,
    batch: dict[str, torch.Tensor],
    inference_keys: Callable,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
) -> None:
    """BOS, EOS and padding are one token in GPT-2; `generate` must not take the BOS prompt for padding."""
    from transformers.utils import logging

    logging.enable_propagation()
    try:
        write(writer, inference_keys(batch), **settings)
    finally:
        logging.disable_propagation()
    assert "padding" not in caplog.text and "pad_token" not in caplog.text


def test_pad_token_falls_back_to_eos(tiny_palm: tuple[PalmForReportGeneration, PalmProcessor]) -> None:
    config: GenerationConfig = tiny_palm[0].generation_config
    assert config.pad_token_id == config.eos_token_id == tiny_palm[1].tokenizer.eos_token_id


def test_errors(writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable) -> None:
    inputs = inference_keys(batch)
    with pytest.raises(ValueError, match="needs `pixel_values`"):
        writer.generate(max_new_tokens=2)
    with pytest.raises(ValueError, match="not both"):
        writer.generate(batch["input_ids"], input_ids=batch["input_ids"], **inputs)
    with pytest.raises(ValueError, match=r"not used by the model.*max_new_token"):
        writer.generate(**inputs, max_new_token=2)
    with pytest.raises(ValueError, match="3 images but 2 indications"):
        writer.generate(**{**inputs, "indication_input_ids": inputs["indication_input_ids"][:2]})
    if writer.config.decoder_input == "prefix":
        with pytest.raises(ValueError, match="static cache has no room"):
            writer.generate(**inputs, cache_implementation="static", max_new_tokens=2)


def test_bfloat16(writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable) -> None:
    half = copy.deepcopy(writer).to(torch.bfloat16)
    assert write(half, inference_keys(batch), num_beams=2).shape[0] == 3


def test_eager_and_sdpa_write_the_same(
    writer: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable
) -> None:
    eager = copy.deepcopy(writer)
    eager.set_attn_implementation("eager")
    assert eager.model.fusion.encoder.config._attn_implementation == "eager"
    inputs = inference_keys(batch)
    assert torch.equal(write(eager, inputs, do_sample=False), write(writer, inputs, do_sample=False))


def test_heat_maps_of_a_written_report(
    lively: PalmForReportGeneration, batch: dict[str, torch.Tensor], inference_keys: Callable
) -> None:
    """Where the decoder looked: one pass over the written ids. The first 17 columns are [CLS] and 4 x 4 patches."""
    lively.set_attn_implementation("eager")
    inputs = inference_keys(batch)
    ids = write(lively, inputs, do_sample=False)
    maps = lively(**inputs, input_ids=ids, output_attentions=True).cross_attentions
    image = torch.stack(maps).mean(dim=(0, 2))[..., 1:17].unflatten(-1, (4, 4))
    assert image.shape == (3, ids.shape[1], 4, 4)
    assert image.std(dim=(2, 3)).max() > 0.01
