"""The processors of LEAD: plain folders, prompts, labels, padding, truncation, images."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, pipeline

import rrg_hf  # noqa: F401 (registers the Auto classes)
from rrg_hf.modeling.lead.image_lead import to_rgb_image
from rrg_hf.modeling.lead.processing_lead import DEFAULT_PROMPT
from rrg_hf.modeling.palm.processing_palm import to_rgb_image as palm_to_rgb_image
from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, PROCESSOR_CLASSES, SPECIAL_TOKENS, perturb

FAMILIES = tuple(LEAD_CLASSES)
GREY = (np.arange(96 * 64) % 251).astype(np.uint8).reshape(96, 64)
OTHER = GREY[::-1, ::-1].copy()
REPORTS = ["The heart is normal. No pleural effusion.", "There is a right effusion and opacity."]
# tokens that stand for one 64 x 64 image, and the text around them in the order of the template
BLOCK = {"qwen3_vl": 16, "internvl": 16, "mistral3": 16}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def processor(family: str, checkpoints: dict[str, Path]) -> Any:
    return PROCESSOR_CLASSES[family].from_pretrained(checkpoints[family], image_size=64, prompt="Write.")


def image_tokens(processor: Any, inputs: Any) -> list[int]:
    return (inputs["input_ids"] == processor.image_token_id).sum(-1).tolist()


# --- loading and saving ----------------------------------------------------------------------------------------------


def test_a_plain_folder_loads_without_its_video_processor(family: str, checkpoints: dict[str, Path]) -> None:
    processor = PROCESSOR_CLASSES[family].from_pretrained(checkpoints[family])
    assert processor.prompt == DEFAULT_PROMPT and processor.image_size == 256 and processor.image_side == 256
    assert processor.chat_template and not hasattr(processor, "video_processor")
    inputs = processor.build_inputs(images=GREY)
    assert image_tokens(processor, inputs) == [256], "16 x 16 tokens of 16 pixels"


def test_round_trip(family: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    processor = PROCESSOR_CLASSES[family].from_pretrained(
        checkpoints[family], image_size=48, prompt="Go.", system_prompt="You write reports."
    )
    processor.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "processor_config.json").read_text())
    assert saved["processor_class"] == PROCESSOR_CLASSES[family].__name__
    assert "Go." not in (tmp_path / "tokenizer_config.json").read_text()
    expected = processor.build_inputs([GREY, OTHER], ["Cough.", None], REPORTS)
    for loader in (PROCESSOR_CLASSES[family], AutoProcessor):
        again = loader.from_pretrained(tmp_path)
        assert type(again) is PROCESSOR_CLASSES[family]
        assert (again.image_size, again.prompt, again.system_prompt) == (48, "Go.", "You write reports.")
        inputs = again.build_inputs([GREY, OTHER], ["Cough.", None], REPORTS)
        assert set(inputs) == set(expected) and all(torch.equal(inputs[name], expected[name]) for name in inputs)
    again.save_pretrained(tmp_path / "again")
    for name in ("processor_config.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / name).read_text()
    copied = copy.deepcopy(again).build_inputs([GREY, OTHER], ["Cough.", None], REPORTS)
    assert torch.equal(copied["pixel_values"], expected["pixel_values"])


@pytest.mark.parametrize(("size", "side"), [(256, 256), (250, 256), (70, 64), (1, 16), (None, None)])
def test_sides_fill_tokens(processor: Any, size: int | None, side: int | None) -> None:
    processor.image_size = size
    assert processor.image_side == side


def test_real_patch_sizes_give_the_closest_side(processor: Any) -> None:
    processor.image_size = 256
    for pixels, side in ((32, 256), (28, 252)):  # Qwen3-VL; InternVL and Ministral
        processor.token_pixels = pixels
        assert processor.image_side == side


def test_wrong_parts(family: str, checkpoints: dict[str, Path]) -> None:
    cls = PROCESSOR_CLASSES[family]
    for size in (0, -5, True):
        with pytest.raises(ValueError, match="`image_size` must be a number of pixels or None"):
            cls.from_pretrained(checkpoints[family], image_size=size)
    right = cls.from_pretrained(checkpoints[family])
    foreign = "mistral3" if family != "mistral3" else "qwen3_vl"
    tokenizer = PROCESSOR_CLASSES[foreign].from_pretrained(checkpoints[foreign]).tokenizer
    with pytest.raises(ValueError, match=r"The tokenizer has no token '.*', so it is not Lead"):
        cls(right.image_processor, tokenizer)
    headless = copy.deepcopy(right.tokenizer)
    headless.eos_token = None
    with pytest.raises(ValueError, match="no end token"):
        cls(right.image_processor, headless)
    padless = copy.deepcopy(right.tokenizer)
    padless.pad_token = None
    assert cls(right.image_processor, padless).tokenizer.pad_token_id == right.tokenizer.eos_token_id


# --- prompts and labels ----------------------------------------------------------------------------------------------


def test_prompt_text(processor: Any) -> None:
    def text(**kwargs: Any) -> str:
        return processor.build_messages(**kwargs)[-1]["content"][-1]["text"]

    assert text() == "Write."
    for missing in (None, "", "  ", float("nan")):
        assert text(indication=missing) == "Write."
    assert text(indication=" Cough,\n fever. ") == "Write.\nIndication: Cough, fever."
    assert text(observations=["Edema", "Pleural Effusion"], indication="Cough.") == (
        "Write.\nIndication: Cough.\nFindings predicted by a classifier: Edema, Pleural Effusion."
    )
    assert text(observations=[]) == "Write.\nFindings predicted by a classifier: none."
    assert text(prompt="Describe.") == "Describe."
    roles = [message["role"] for message in processor.build_messages(GREY, report="Clear.")]
    assert roles == ["user", "assistant"]
    processor.system_prompt = "Be brief."
    assert processor.build_messages()[0] == {"role": "system", "content": "Be brief."}


def test_prompts_reach_the_ids(processor: Any) -> None:
    inputs = processor.build_inputs([GREY, GREY], ["Cough.", None], observations=[["Edema"], []])
    first, second = processor.batch_decode(inputs["input_ids"])
    assert "Write.\nIndication: Cough.\nFindings predicted by a classifier: Edema." in first
    assert "Indication" not in second and "classifier: none." in second
    own = processor.build_inputs([GREY], prompt="Describe.")
    assert "Describe." in processor.decode(own["input_ids"][0])


def test_training_is_the_prompt_plus_the_report_and_one_end(family: str, processor: Any) -> None:
    inputs = processor.build_inputs([GREY, [GREY, OTHER]], ["Cough.", None], REPORTS)
    prompts = processor.build_inputs([GREY, [GREY, OTHER]], ["Cough.", None])
    end = processor.end_token_id
    assert end == processor.tokenizer.eos_token_id == 1
    for row, report in enumerate(REPORTS):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        labels = inputs["labels"][row][inputs["attention_mask"][row].bool()]
        prompt = prompts["input_ids"][row][prompts["attention_mask"][row].bool()]
        assert torch.equal(ids[: len(prompt)], prompt), "training and generation share the prompt to the token"
        assert (labels[: len(prompt)] == -100).all()
        assert torch.equal(labels[len(prompt) :], ids[len(prompt) :])
        assert processor.decode(labels[len(prompt) : -1]) == report
        assert labels[-1] == end and (labels == end).sum() == 1, "no newline of the template behind the end"
    padding = inputs["attention_mask"] == 0
    assert (inputs["labels"][padding] == -100).all()
    # the same ids as tokenising the rendered chat in one go
    chat = processor.build_messages(GREY, "Cough.", report=REPORTS[0])
    whole = processor.apply_chat_template(chat, tokenize=True, return_dict=True, return_tensors="pt")
    own = inputs["input_ids"][0][inputs["attention_mask"][0].bool()]
    assert torch.equal(whole["input_ids"][0, : len(own)], own)
    tail = processor.decode(whole["input_ids"][0, len(own) :])
    assert tail == ("" if family == "mistral3" else "\n")


def test_reports_are_stripped_and_never_missing(processor: Any) -> None:
    same = [processor.build_inputs(GREY, report=text)["labels"] for text in ("No edema.", "  No edema.\n")]
    assert torch.equal(*same)
    for report in (["Clear.", " "], ["Clear.", None]):
        with pytest.raises(ValueError, match="`report` 1 is missing or blank"):
            processor.build_inputs([GREY, GREY], report=report)


def test_patient_text_cannot_write_control_tokens(family: str, processor: Any) -> None:
    for token in SPECIAL_TOKENS[family]:
        for name in ("indication", "report", "prompt"):
            value: Any = f"Cough {token}" if name == "prompt" else ["Cough.", f"Cough {token} fever"]
            with pytest.raises(ValueError, match=rf"`{name}` \d holds the control tokens") as caught:
                processor.build_inputs([GREY, GREY], **{name: value})
            assert "fever" not in str(caught.value)
    with pytest.raises(ValueError, match="`observations` 0 holds the control tokens"):
        processor.build_inputs(GREY, observations=[SPECIAL_TOKENS[family][1]])


def test_templates_that_cannot_be_learnt(processor: Any) -> None:
    good = processor.chat_template
    processor.chat_template = good.replace("{{ message.content", "{{ 'think: ' + message.content")
    with pytest.raises(ValueError, match="does not put an answer right behind its generation prompt"):
        processor.build_inputs(GREY, report="Clear.")
    processor.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string else m.content[-1].text }} END "
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    with pytest.raises(ValueError, match="ends an answer with plain text"):
        processor.build_inputs(report="Clear.")


# --- padding and batches ---------------------------------------------------------------------------------------------


def test_sides(processor: Any) -> None:
    """Left to generate, right to learn; the tokenizer keeps its own side, which is the wrong one here."""
    assert processor.tokenizer.padding_side == "right"
    generate = processor.build_inputs([GREY, OTHER], ["Cough and fever for a week.", None])
    assert generate["attention_mask"][:, -1].tolist() == [1, 1] and generate["attention_mask"][1, 0] == 0
    learn = processor.build_inputs([GREY, OTHER], ["Cough and fever for a week.", None], REPORTS)
    assert learn["attention_mask"][:, 0].tolist() == [1, 1] and learn["attention_mask"][1, -1] == 0
    other = processor.build_inputs([GREY, OTHER], ["Cough.", None], padding_side="right")
    assert other["attention_mask"][:, 0].tolist() == [1, 1]
    with pytest.raises(ValueError, match="`padding_side` must be"):
        processor.build_inputs(GREY, padding_side="middle")
    texts = [
        processor.apply_chat_template(processor.build_messages(image, indication), add_generation_prompt=True)
        for image, indication in ((GREY, "Cough and fever for a week."), (OTHER, None))
    ]
    like_others = processor(images=[[GREY], [OTHER]], text=texts, padding=True, return_tensors="pt")
    assert set(like_others) == set(generate)
    assert all(torch.equal(like_others[name], generate[name]) for name in generate)
    right = processor(images=[[GREY], [OTHER]], text=texts, padding=True, padding_side="right", return_tensors="pt")
    assert right["attention_mask"][1, -1] == 0
    assert processor.tokenizer.padding_side == "right"


@pytest.mark.parametrize("report", [None, REPORTS])
@pytest.mark.parametrize("image_size", [64, None])
def test_a_batch_is_its_samples(processor: Any, report: list[str] | None, image_size: int | None) -> None:
    processor.image_size = image_size
    samples: list[Any] = [[GREY, OTHER[:40]], OTHER[:, :40]]
    indications = ["Cough and fever.", None]
    together = processor.build_inputs(samples, indications, report)
    pixels = []
    for row, images in enumerate(samples):
        alone = processor.build_inputs([images], [indications[row]], report and [report[row]])
        mask = together["attention_mask"][row].bool()
        for name in ("input_ids", "labels", "mm_token_type_ids"):
            if name in together:
                assert torch.equal(together[name][row][mask], alone[name][0]), name
        pixels.append(alone["pixel_values"])
    if image_size is None and together["pixel_values"].ndim == 4 and "image_sizes" in together:
        return  # Pixtral pads a batch's images to the largest
    assert torch.equal(together["pixel_values"], torch.cat(pixels))


def test_samples_without_images(processor: Any) -> None:
    mixed = processor.build_inputs([None, GREY, []], ["Cough."] * 3)
    assert image_tokens(processor, mixed) == [0, BLOCK["qwen3_vl"], 0]
    for images in (None, [None, None], [[], None]):
        inputs = processor.build_inputs(images, ["Cough.", "Fever."])
        assert image_tokens(processor, inputs) == [0, 0] and "pixel_values" not in inputs


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "Nothing to process"),
        ({"images": []}, "The batch is empty"),
        ({"images": [GREY, GREY], "report": ["Clear."]}, r"differ: \{'images': 2, 'report': 1\}.*in the list"),
        ({"images": GREY, "indication": ["a", "b"]}, "batch sizes differ"),
        ({"indication": [3]}, "`indication` 0 must be a string or None, got int"),
        ({"images": [GREY], "observations": [["Edema", 3]]}, "`observations` 0 must be a list of names"),
    ],
    ids=str,
)  # fmt: skip
def test_batches_that_do_not_fit(processor: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        processor.build_inputs(**kwargs)


def test_containers_of_one_sample(processor: Any) -> None:
    expected = processor.build_inputs([[GREY]], ["Cough."], [REPORTS[0]], [["Edema"]])
    for images in (GREY, [GREY], ([GREY],), torch.from_numpy(GREY), np.repeat(GREY[None, None], 3, 1)):
        inputs = processor.build_inputs(images, "Cough.", REPORTS[0], ["Edema"])
        assert all(torch.equal(inputs[name], expected[name]) for name in expected)


# --- truncation and counts -------------------------------------------------------------------------------------------


def test_prompts_are_never_cut(processor: Any) -> None:
    whole = processor.build_inputs([GREY, [GREY, OTHER], None])
    lengths = whole["attention_mask"].sum(-1).tolist()
    limit = lengths[1] - 1
    with pytest.raises(
        ValueError, match=rf"max_length={limit} would cut the prompt in 1 of 3 samples \(1 of them with"
    ):
        processor.build_inputs([GREY, [GREY, OTHER], None], max_length=limit)
    with pytest.raises(ValueError, match="in 2 of 3 samples"):
        processor.build_inputs([GREY, [GREY, OTHER], None], max_length=lengths[2] + 1)
    processor.build_inputs([GREY, [GREY, OTHER], None], max_length=lengths[1])
    with pytest.raises(ValueError, match=rf"prompts take up to {lengths[0]} tokens and a report at least 2 more"):
        processor.build_inputs([GREY], report=["Clear."], max_length=lengths[0] + 1)


def test_reports_are_cut_and_counted(processor: Any) -> None:
    whole = processor.build_inputs([GREY, GREY], report=[REPORTS[0], "No."])
    length = int(whole["attention_mask"][0].sum())
    exact = processor.build_inputs([GREY, GREY], report=[REPORTS[0], "No."], max_length=length)
    assert torch.equal(exact["labels"], whole["labels"]) and processor.truncated_reports == 0
    cut = processor.build_inputs([GREY, GREY], report=[REPORTS[0], "No."], max_length=length - 3)
    assert cut["input_ids"].shape[1] == length - 3
    assert torch.equal(cut["labels"][0], whole["labels"][0, : length - 3])
    assert (cut["labels"][0] != processor.end_token_id).all(), "a cut report must not teach to stop"
    assert (cut["labels"][1] == processor.end_token_id).sum() == 1
    assert processor.truncated_reports == 1
    processor.build_inputs([GREY, GREY], report=REPORTS, max_length=length - 3)
    assert processor.truncated_reports == 3 - int(len(REPORTS[1]) < 30)


def test_text_with_truncation_that_cuts_an_image(processor: Any) -> None:
    text = processor.apply_chat_template(processor.build_messages(GREY), add_generation_prompt=True)
    with pytest.raises(ValueError, match="`max_length` would cut image tokens in 1 of 2 samples"):
        processor(images=[[GREY], []], text=[text, "Hello."], truncation=True, max_length=12)


def test_text_without_placeholders(processor: Any) -> None:
    """A bare prompt with an image: 0 placeholders for 1 image, told before any compute."""
    with pytest.raises(ValueError, match=r"Got 1 images for 0 image placeholders .* in 1 texts.*apply_chat_template"):
        processor(images=GREY, text="Write the findings.")
    text = processor.apply_chat_template(processor.build_messages(GREY), add_generation_prompt=True)
    with pytest.raises(ValueError, match=r"\[0, 2\] images for \[1, 1\]"):
        processor(images=[[], [GREY, OTHER]], text=[text, text])
    with pytest.raises(ValueError, match="Got 0 images for 1"):
        processor(text=text)
    with pytest.raises(ValueError, match="images and text only"):
        processor(text=text, images=GREY, videos=[GREY])
    with pytest.raises(ValueError, match="Give `text`, or `indication`"):
        processor(text=text, images=GREY, indication="Cough.")
    assert "pixel_values" not in processor(text="Hello.", return_tensors="pt")


def test_placeholders_equal_features(family: str, processor: Any, checkpoints: dict[str, Path]) -> None:
    model = LEAD_CLASSES[family].from_pretrained(checkpoints[family], lead_config=LEAD_TINY).eval()
    for size in (64, 32, None):
        processor.image_size = size
        inputs = processor.build_inputs([[GREY, OTHER[:40]], GREY[:, :30]], report=REPORTS)
        layout = {k: v for k, v in inputs.items() if k in ("pixel_values", "image_grid_thw", "image_sizes")}
        with torch.no_grad():
            features = model.model.get_image_features(**layout, return_dict=True).pooler_output
            assert sum(map(len, features)) == sum(image_tokens(processor, inputs))
            output = model(**inputs, expert_labels=torch.zeros(2, 14))
        assert output.loss.isfinite() and output.expert_logits.shape == (2, 14)
        if family == "qwen3_vl":
            assert torch.equal(inputs["mm_token_type_ids"] == 1, inputs["input_ids"] == processor.image_token_id)


# --- images ----------------------------------------------------------------------------------------------------------


def pictures() -> list[Any]:
    wide = GREY.astype(np.uint16)
    return [
        *(GREY, GREY[..., None], np.repeat(GREY[None], 3, 0), np.dstack([GREY] * 4)),
        *(wide * 257, wide.astype(np.int32) * 257, wide.astype(np.int64)),
        *(GREY / 255.0, GREY.astype(np.float32), torch.from_numpy(GREY), torch.from_numpy(GREY / 255.0)[None]),
        *(Image.fromarray(GREY).convert(mode) for mode in ("L", "RGB", "LA", "P", "F", "I")),
        Image.fromarray(wide * 257),
    ]


def test_images_follow_the_rules_of_palm(tmp_path: Path) -> None:
    for picture in pictures():
        image = to_rgb_image(picture)
        assert image.mode == "RGB" and (np.asarray(image) == GREY[..., None]).all()
        assert (np.asarray(palm_to_rgb_image(picture)) == np.asarray(image)).all()
    for bad in (
        *(np.zeros(shape, np.uint8) for shape in ((1, 1), (5, 64, 64), (64,))),
        *(np.full((64, 64), value) for value in (np.nan, -1.0, 300.0, 70_000)),
        np.array([["a"]]),
        None,
    ):
        with pytest.raises(ValueError) as ours:
            to_rgb_image(bad)
        with pytest.raises(ValueError) as palms:
            palm_to_rgb_image(bad)
        assert str(ours.value).split(". ")[0] == str(palms.value).split(". ")[0]
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    for path in (tmp_path / "deep.png", str(tmp_path / "deep.png")):
        assert (np.asarray(to_rgb_image(path)) == GREY[..., None]).all(), "16-bit files are scaled, not clipped"


def test_greyscale_and_depth_make_no_difference(processor: Any, tmp_path: Path) -> None:
    expected = processor.build_inputs(GREY)["pixel_values"]
    assert expected.dtype == torch.float32 and expected.min() >= -1 and expected.max() <= 1
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    for picture in (Image.fromarray(GREY), GREY.astype(np.uint16) * 257, str(tmp_path / "deep.png")):
        assert torch.equal(processor.build_inputs([picture])["pixel_values"], expected)
        chat = processor.build_messages(picture)
        inputs = processor.apply_chat_template(
            chat, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        assert torch.equal(inputs["pixel_values"], expected)
    with pytest.raises(ValueError, match="image 1 of sample 0 is 1 x 1 pixels"):
        processor.build_inputs([[GREY, np.zeros((1, 1), np.uint8)]])


def test_the_picture_is_the_whole_picture(family: str, processor: Any) -> None:
    """A 64 x 64 square of the image, whatever its shape: no crop, no tiles, no aspect ratio kept."""
    step = np.zeros((200, 100), np.uint8)
    step[:, 50:] = 255
    pixels = processor.build_inputs(step)["pixel_values"]
    if family == "qwen3_vl":
        pixels = (
            pixels.reshape(4, 4, 2, 2, 3, 2, 8, 8)[:, :, :, :, :, 0].permute(4, 0, 2, 5, 1, 3, 6).reshape(3, 64, 64)
        )
    else:
        pixels = pixels[0]
    assert pixels.shape == (3, 64, 64)
    assert (pixels[:, :, :30] == -1).all() and (pixels[:, :, 34:] == 1).all()


# --- with the model --------------------------------------------------------------------------------------------------


def test_generation_starts_behind_the_prompt(family: str, processor: Any, checkpoints: dict[str, Path]) -> None:
    """Prompts of different lengths: each row is what it is alone, and no prompt is echoed."""
    model = perturb(LEAD_CLASSES[family].from_pretrained(checkpoints[family], lead_config=LEAD_TINY)).eval()
    settings = {"max_new_tokens": 8, "num_beams": 2, "suppress_tokens": [5, 6, 7, 8], "repetition_penalty": 1.05}
    indications = [None, "Cough and fever for one week after a long journey, query pneumonia."]
    inputs = processor([GREY, OTHER], indication=indications)
    written = processor.decode_reports(model.generate(**inputs, **settings), inputs)
    for row, image in enumerate((GREY, OTHER)):
        alone = processor([image], indication=[indications[row]])
        sequences = model.generate(**alone, **settings)
        assert processor.decode_reports(sequences, alone) == [written[row]]
        assert "Write." not in written[row] and "Indication" not in written[row]
    several = model.generate(**inputs, **settings, num_return_sequences=2)
    assert len(processor.decode_reports(several, inputs)) == 4


def test_image_text_to_text_pipeline(
    family: str, processor: Any, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    model = perturb(LEAD_CLASSES[family].from_pretrained(checkpoints[family], lead_config=LEAD_TINY)).eval()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    write = pipeline("image-text-to-text", model=str(tmp_path))
    assert type(write.model) is LEAD_CLASSES[family] and type(write.processor) is PROCESSOR_CLASSES[family]
    settings = {"max_new_tokens": 6, "suppress_tokens": [5, 6, 7, 8], "do_sample": False}
    chat = processor.build_messages(Image.fromarray(GREY), "Cough.")
    result = write(text=chat, return_full_text=False, generate_kwargs=settings)
    inputs = processor([GREY], indication=["Cough."])
    expected = processor.decode_reports(model.generate(**inputs, **settings), inputs)[0]
    assert result[0]["generated_text"].strip() == expected


def test_start_tokens_are_not_doubled(checkpoints: dict[str, Path]) -> None:
    processor = PROCESSOR_CLASSES["mistral3"].from_pretrained(checkpoints["mistral3"], image_size=64)
    inputs = processor.build_inputs([GREY])
    text = processor.apply_chat_template(processor.build_messages(GREY), add_generation_prompt=True)
    assert text.startswith("<s>")
    assert torch.equal(processor(images=GREY, text=text, return_tensors="pt")["input_ids"], inputs["input_ids"])
    assert (inputs["input_ids"] == processor.tokenizer.bos_token_id).sum() == 1
