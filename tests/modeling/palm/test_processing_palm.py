"""PalmProcessor: images, tokens, labels, saving."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from rrg_hf.modeling.palm import PalmProcessor
from rrg_hf.modeling.palm.processing_palm import to_rgb_image
from tests.tiny_palm import SENTENCES

GREY = np.arange(64 * 48, dtype=np.uint16).reshape(64, 48) % 256
GREY8 = GREY.astype(np.uint8)

# --- images ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Image.fromarray(GREY8),
        lambda: Image.fromarray(GREY8).convert("RGB"),
        lambda: Image.fromarray(GREY8).convert("RGBA"),
        lambda: Image.fromarray(GREY8).convert("LA"),
        lambda: Image.fromarray(GREY8).convert("I"),
        lambda: Image.fromarray(GREY8).convert("F"),
        lambda: Image.fromarray(GREY * 257),
        lambda: GREY8,
        lambda: GREY8[..., None],
        lambda: np.repeat(GREY8[..., None], 3, 2),
        lambda: np.repeat(GREY8[None], 3, 0),
        lambda: np.dstack([GREY8] * 3 + [np.full_like(GREY8, 9)]),
        lambda: (GREY * 257).astype(np.uint16),
        lambda: GREY.astype(np.int32) * 257,
        lambda: GREY.astype(np.int64),
        lambda: GREY / 255.0,
        lambda: GREY.astype(np.float32),
        lambda: torch.from_numpy(GREY8),
        lambda: torch.from_numpy(GREY / 255.0)[None],
        lambda: torch.from_numpy(GREY8)[None].to(torch.bfloat16) / 256 * 0 + torch.from_numpy(GREY / 255.0)[None],
    ],
)
def test_same_picture_from_any_container(make: Callable[[], Any]) -> None:
    image = to_rgb_image(make())
    assert image.mode == "RGB" and image.size == (48, 64)
    assert (np.asarray(image) == GREY8[..., None]).all()


def test_palette_images() -> None:
    image = to_rgb_image(Image.fromarray(GREY8).convert("P"))
    assert (np.asarray(image) == GREY8[..., None]).all()


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    array = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    values = np.asarray(to_rgb_image(array))[..., 0]
    assert values[0, 0] == 0 and values[-1, -1] == 255
    assert len(np.unique(values)) == 256
    assert (np.abs(values - array / 257.0) <= 0.5).all()
    dark = np.full((64, 64), 200, np.uint16)
    assert np.asarray(to_rgb_image(dark)).max() == 1, "16-bit stays 16-bit however dark it is"


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((1, 1), np.uint8), "1 x 1 pixels.*at least 8 x 8"),
        (Image.new("L", (1, 1)), "1 x 1 pixels"),
        (Image.new("L", (200, 3)), "200 x 3 pixels"),
        (np.zeros((0, 64), np.uint8), "64 x 0 pixels"),
        (np.full((64, 64), np.nan), "NaN or infinite pixels"),
        (np.where(np.eye(64) > 0, np.inf, 0.5), "NaN or infinite pixels"),
        (torch.full((3, 64, 64), float("nan")), "NaN or infinite pixels"),
        (np.full((64, 64), -1.0), "negative pixels"),
        (np.full((64, 64), 300.0), "beyond its value range"),
        (np.full((64, 64), 70_000, np.int64), "beyond its value range"),
        (np.zeros((5, 64, 64), np.uint8), "several images as a list"),
        (np.zeros((64,), np.uint8), "has shape"),
        (np.array([["a"]]), "is not an image"),
        (None, "is not an image"),
        ("scan.png", "is a path or raw bytes.*read_image"),
        (Path("scan.png"), "is a path or raw bytes"),
        (b"\x89PNG", "is a path or raw bytes"),
    ],
)
def test_bad_images(processor: PalmProcessor, image: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)image 1.*{message}|image 1 {message}"):
        processor(images=[GREY8, image])


def test_constant_images_pass(processor: PalmProcessor) -> None:
    """Occlusion may blank a whole image."""
    assert processor(images=np.zeros((64, 64), np.uint8))["pixel_values"].isfinite().all()


def test_pixel_values(processor: PalmProcessor) -> None:
    pixels = processor(images=np.full((80, 80), 51, np.uint8))["pixel_values"]
    assert pixels.shape == (1, 3, 56, 56) and pixels.dtype == torch.float32
    torch.testing.assert_close(pixels, torch.full_like(pixels, (0.2 - 0.5307) / 0.2583), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "images",
    [
        [GREY8, GREY8.T],
        (GREY8, GREY8.T),
        [[GREY8], [GREY8.T]],
        [[Image.fromarray(GREY8)], (Image.fromarray(GREY8.T),)],
    ],
)
def test_nested_lists(processor: PalmProcessor, images: Any) -> None:
    expected = torch.cat([processor(images=image)["pixel_values"] for image in (GREY8, GREY8.T)])
    assert torch.equal(processor(images=images)["pixel_values"], expected)


def test_four_dimensional_arrays_are_batches(processor: PalmProcessor) -> None:
    stack = np.stack([np.repeat(GREY8[..., None], 3, 2)] * 2)
    assert processor(images=stack)["pixel_values"].shape[0] == 2
    assert processor(images=torch.from_numpy(stack).permute(0, 3, 1, 2))["pixel_values"].shape[0] == 2


@pytest.mark.parametrize("images", [[[GREY8, GREY8], [GREY8]], [[]], [[GREY8], []]])
def test_one_image_per_study(processor: PalmProcessor, images: Any) -> None:
    with pytest.raises(ValueError, match=r"Study \d has \d images, but PALM reads one per study.*frontal"):
        processor(images=images)


# --- reports, prompts, indications -----------------------------------------------------------------------------------


def test_labels_keep_eos_and_mask_padding(processor: PalmProcessor) -> None:
    """Padding and EOS are the same token in GPT-2; the model must still learn where a report ends."""
    tokenizer = processor.tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == tokenizer.bos_token_id
    inputs = processor(report=list(SENTENCES[:3]))
    for row, text in enumerate(SENTENCES[:3]):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        expected = [tokenizer.bos_token_id, *ids, tokenizer.eos_token_id]
        length = len(expected)
        assert inputs["input_ids"][row, :length].tolist() == expected
        assert inputs["labels"][row, :length].tolist() == expected
        assert (inputs["labels"][row, length:] == -100).all()
        assert inputs["attention_mask"][row].tolist() == [1] * length + [0] * (inputs["labels"].shape[1] - length)
    assert processor.batch_decode(inputs["input_ids"], skip_special_tokens=True) == list(SENTENCES[:3])


def test_report_for_the_text_encoder(processor: PalmProcessor) -> None:
    inputs = processor(report=list(SENTENCES[:2]))
    for row in range(2):
        alone = processor.text_tokenizer(SENTENCES[row])["input_ids"]
        assert inputs["report_input_ids"][row, : len(alone)].tolist() == alone
        assert int(inputs["report_attention_mask"][row].sum()) == len(alone)


def test_own_special_tokens_are_used(processor: PalmProcessor) -> None:
    tokenizer = copy.deepcopy(processor.tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    other = PalmProcessor(processor.image_processor, tokenizer, processor.text_tokenizer)
    inputs = other(report=["Clear.", "Mild edema."])
    assert (inputs["input_ids"][:, 0] == tokenizer.convert_tokens_to_ids("<s>")).all()
    assert inputs["labels"][1, -1] == tokenizer.convert_tokens_to_ids("</s>")
    assert inputs["input_ids"][0, -1] == tokenizer.convert_tokens_to_ids("<pad>") and inputs["labels"][0, -1] == -100


def test_cut_reports_have_no_eos(processor: PalmProcessor) -> None:
    eos = processor.tokenizer.eos_token_id
    whole = processor(report=SENTENCES[0])["input_ids"][0]
    exact = processor(report=SENTENCES[0], max_length=len(whole))
    assert exact["labels"][0, -1] == eos
    cut = processor(report=SENTENCES[0], max_length=len(whole) - 3)
    assert cut["input_ids"].shape == (1, len(whole) - 3)
    assert torch.equal(cut["input_ids"][0], whole[:-3]) and cut["labels"][0, -1] != eos
    long = processor(report=" ".join(SENTENCES * 3))
    assert long["input_ids"].shape[1] == processor.report_max_length
    assert long["report_input_ids"].shape[1] == processor.text_max_length


def test_prompts_begin_with_bos_and_pad_on_the_left(processor: PalmProcessor) -> None:
    side = processor.tokenizer.padding_side
    inputs = processor(text=["The", "The heart size is normal."])
    bos = processor.tokenizer.bos_token_id
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert inputs["attention_mask"][:, -1].tolist() == [1, 1]
    first = int((inputs["attention_mask"][0] == 0).sum())
    assert first > 0 and inputs["input_ids"][0, first] == bos and inputs["input_ids"][1, 0] == bos
    assert processor.tokenizer.padding_side == side, "the tokenizer's own setting is left alone"
    again = processor(text=processor.tokenizer.bos_token + "The")
    assert again["input_ids"].tolist() == [inputs["input_ids"][0, first:].tolist()], "no second BOS"
    bare = processor(text=["The", "The heart"], add_special_tokens=False, padding_side="right")
    assert bare["input_ids"][0, 0] != bos and bare["attention_mask"][0, -1] == 0


def test_missing_indications_are_all_padding(processor: PalmProcessor) -> None:
    inputs = processor(indication=["Cough.", None, "  ", float("nan"), "Fever and cough."])
    assert inputs["indication_attention_mask"].sum(1).tolist()[1:4] == [0, 0, 0]
    assert (inputs["indication_input_ids"][1:4] == processor.text_tokenizer.pad_token_id).all()
    alone = processor(indication="Cough.")["indication_input_ids"][0].tolist()
    assert inputs["indication_input_ids"][0, : len(alone)].tolist() == alone
    images = [GREY8] * 2
    assert "indication_input_ids" not in processor(images=images, indication=[None, None])
    assert "indication_input_ids" not in processor(images=GREY8, indication=None)


def test_long_indications_are_cut(processor: PalmProcessor) -> None:
    inputs = processor(indication="cough " * 100)
    assert inputs["indication_input_ids"].shape[1] == processor.indication_max_length
    assert inputs["indication_input_ids"][0, -1] == processor.text_tokenizer.sep_token_id


def test_everything_at_once(batch: dict[str, torch.Tensor]) -> None:
    assert sorted(batch) == [
        "attention_mask",
        "indication_attention_mask",
        "indication_input_ids",
        "input_ids",
        "labels",
        "pixel_values",
        "report_attention_mask",
        "report_input_ids",
    ]
    assert {len(value) for value in batch.values()} == {3}


def test_numpy_and_lists(processor: PalmProcessor) -> None:
    arrays = processor(images=GREY8, report="Clear.", return_tensors="np")
    assert all(isinstance(value, np.ndarray) for value in arrays.values())
    lists = processor(report=["Clear.", "Mild edema."], return_tensors=None)
    assert isinstance(lists["input_ids"][0], list)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Nothing to process"),
        ({"images": []}, "`images` is empty"),
        ({"text": "a", "report": "b"}, "not both"),
        ({"images": [GREY8], "report": ["a", "b"]}, r"batch sizes differ: \{'images': 1, 'report': 2\}"),
        ({"images": [GREY8], "indication": ["a", "b"]}, "batch sizes differ"),
        ({"report": [None]}, "`report` 0 must be a string, got NoneType"),
        ({"report": ["a", 3]}, "`report` 1 must be a string, got int"),
        ({"text": [1]}, "`text` 0 must be a string"),
        ({"indication": [3]}, "`indication` 0 must be a string or None, got int"),
        ({"report": "a", "do_resize": False}, r"does not know the arguments \['do_resize'\]"),
    ],
)
def test_bad_calls(processor: PalmProcessor, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        processor(**arguments)


def test_errors_hold_no_report_text(processor: PalmProcessor) -> None:
    with pytest.raises(ValueError) as error:
        processor(images=[GREY8], report=["Secret finding.", "Another."])
    assert "Secret" not in str(error.value)


# --- saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", [PalmProcessor, AutoProcessor])
def test_round_trip(
    processor: PalmProcessor,
    tmp_path: Path,
    loader: Any,
    batch: dict[str, torch.Tensor],
    radiographs: list[np.ndarray],
) -> None:
    processor.save_pretrained(tmp_path)
    assert (tmp_path / "text_tokenizer" / "tokenizer.json").is_file(), "the second tokenizer has a folder of its own"
    assert (tmp_path / "tokenizer.json").is_file()
    (tmp_path / "config.json").write_text('{"model_type": "palm"}')
    again = loader.from_pretrained(tmp_path)
    assert type(again) is PalmProcessor
    assert type(again.tokenizer) is type(processor.tokenizer)
    assert type(again.text_tokenizer) is type(processor.text_tokenizer)
    assert again.tokenizer.get_vocab() == processor.tokenizer.get_vocab()
    assert again.text_tokenizer.get_vocab() == processor.text_tokenizer.get_vocab()
    assert again.tokenizer.get_vocab() != again.text_tokenizer.get_vocab()
    for name in ("report_max_length", "indication_max_length", "text_max_length"):
        assert getattr(again, name) == getattr(processor, name)
    assert again.tokenizer.pad_token_id == processor.tokenizer.pad_token_id
    inputs = again(
        images=radiographs, indication=["Cough and fever.", None, "Shortness of breath."], report=list(SENTENCES[:3])
    )
    for key, value in batch.items():
        assert torch.equal(inputs[key], value), key


def test_settings_survive(processor: PalmProcessor, tmp_path: Path) -> None:
    parts = (processor.image_processor, processor.tokenizer, processor.text_tokenizer)
    PalmProcessor(*parts, report_max_length=17, indication_max_length=9).save_pretrained(tmp_path)
    again = PalmProcessor.from_pretrained(tmp_path)
    assert (again.report_max_length, again.indication_max_length, again.text_max_length) == (17, 9, 512)


def test_constructor_checks(processor: PalmProcessor) -> None:
    parts = (processor.image_processor, processor.tokenizer, processor.text_tokenizer)
    with pytest.raises(ValueError, match="`report_max_length` must be at least 3"):
        PalmProcessor(*parts, report_max_length=2)
    tokenizer = copy.deepcopy(processor.tokenizer)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no EOS token"):
        PalmProcessor(parts[0], tokenizer, parts[2])
    text_tokenizer = copy.deepcopy(processor.text_tokenizer)
    text_tokenizer.pad_token = None
    with pytest.raises(ValueError, match=r"no \[PAD\] or \[CLS\] token"):
        PalmProcessor(parts[0], parts[1], text_tokenizer)


def test_folder_without_the_second_tokenizer(processor: PalmProcessor, tmp_path: Path) -> None:
    """transformers would load the decoder's tokenizer twice, with a log line only."""
    processor.save_pretrained(tmp_path)
    shutil.rmtree(tmp_path / "text_tokenizer")
    with pytest.raises(ValueError, match="folder text_tokenizer"):
        PalmProcessor.from_pretrained(tmp_path)


def test_remote_code_of_a_backbone_is_not_saved_along(processor: PalmProcessor, tmp_path: Path) -> None:
    processor.save_pretrained(tmp_path)
    for path in (tmp_path / "tokenizer_config.json", tmp_path / "text_tokenizer" / "tokenizer_config.json"):
        assert "auto_map" not in json.loads(path.read_text())


def test_decode(processor: PalmProcessor) -> None:
    ids = processor(report=SENTENCES[1])["input_ids"]
    assert processor.decode(ids[0], skip_special_tokens=True) == SENTENCES[1]
