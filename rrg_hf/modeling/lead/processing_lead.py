"""Processors of LEAD: radiographs, indications and reports through the backbone's own chat template to tensors.

They read images and text only, so they load from a plain backbone folder without its video processor, which would need
torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image
from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ProcessorMixin
from transformers.utils import logging

from .image_lead import to_rgb_image

logger = logging.get_logger(__name__)

DEFAULT_PROMPT = "Write the findings section of the radiology report for this chest X-ray."
"""The instruction of every sample. Not stated in the paper; another one is an argument of every processor."""
INDICATION_LINE = "Indication: {}"
OBSERVATIONS_LINE = "Findings predicted by a classifier: {}."
DEFAULT_IMAGE_SIZE = 256

_IGNORED_LABEL = -100
_PROBE = "Clear lungs."


class LeadProcessorMixin(ProcessorMixin):
    r"""Image processor and tokenizer of a LEAD backbone in one.

    Args:
        image_processor: of the backbone. Works without torchvision.
        tokenizer: of the backbone. Without a padding token its end token pads; labels are masked by position, so the
            end of a report is still learnt.
        chat_template (`str`, *optional*): of the backbone; the tokenizer's by default.
        image_size (`int`, *optional*, defaults to 256): every image is resized to a square of this side, the paper's
            256 x 256, or to the closest side that patches fill (252 where a token covers 28 pixels: InternVL and
            Ministral). `None` leaves sizes to the backbone's own image processor.
        prompt (`str`, *optional*): the instruction; `DEFAULT_PROMPT` by default.
        system_prompt (`str`, *optional*): a system message; by default whatever the template does without one.

    Attributes:
        truncated_reports (`int`): reports that this object has cut to `max_length` so far.

    Example:

    ```python
    >>> processor = LeadQwen3VLProcessor.from_pretrained("Qwen/Qwen3-VL-2B-Instruct")
    >>> inputs = processor.build_inputs(images=[image], indication=["Cough."])
    >>> sequences = model.generate(**inputs, num_beams=2, repetition_penalty=1.05, max_new_tokens=128)
    >>> processor.decode_reports(sequences, inputs)
    ['The lungs are clear.']
    ```"""

    text_kwargs = {"return_token_type_ids": False}  # noqa: RUF012
    image_token: str
    image_token_id: int
    token_pixels: int  # side of the square of pixels that one image token stands for

    def _set_up(
        self,
        image_processor: Any,
        tokenizer: Any,
        chat_template: str | None,
        image_size: int | None,
        prompt: str | None,
        system_prompt: str | None,
    ) -> None:
        if image_size is not None and (isinstance(image_size, bool) or image_size < 1):
            raise ValueError(f"`image_size` must be a number of pixels or None, got {image_size!r}.")
        if tokenizer.eos_token_id is None:
            raise ValueError("The tokenizer has no end token; a model could not learn where a report ends.")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        ProcessorMixin.__init__(
            self, image_processor, tokenizer, chat_template=chat_template or tokenizer.chat_template
        )
        self.image_size = image_size
        self.prompt = DEFAULT_PROMPT if prompt is None else prompt
        self.system_prompt = system_prompt
        self.truncated_reports = 0

    def _token_id(self, token: str) -> int:
        token_id = self.tokenizer.convert_tokens_to_ids(token)
        if token_id is None or token_id == self.tokenizer.unk_token_id:
            raise ValueError(f"The tokenizer has no token {token!r}, so it is not {type(self).__name__}'s.")
        return token_id

    @classmethod
    def _get_arguments_from_pretrained(
        cls, pretrained_model_name_or_path: Any, processor_dict: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Any]:
        # Our own settings are none of the tokenizer's, which would save them along.
        own = set(cls.__init__.__code__.co_varnames[: cls.__init__.__code__.co_argcount])
        kwargs = {name: value for name, value in kwargs.items() if name not in own}
        return super()._get_arguments_from_pretrained(pretrained_model_name_or_path, processor_dict, **kwargs)

    # --- images ------------------------------------------------------------------------------------------------------

    @property
    def image_side(self) -> int | None:
        """Side in pixels that images are resized to: the multiple of a token's side closest to `image_size`."""
        if self.image_size is None:
            return None
        return max(1, round(self.image_size / self.token_pixels)) * self.token_pixels

    def _resize(self, image: Image.Image) -> Image.Image:
        # With Pillow: the backbones' processors keep the aspect ratio, or cut tiles, and their Pillow and torchvision
        # versions differ in the last bits.
        side = self.image_side
        return image if side is None else image.resize((side, side), Image.Resampling.BICUBIC)

    def _process_images(self, images: Any, **kwargs: Any) -> tuple[Any, list[str]]:
        flat = [self._resize(image) for entry in images for image in (entry if isinstance(entry, list) else [entry])]
        if self.image_side is not None:
            kwargs["do_resize"] = False
        processed = self.image_processor(images=flat, **self._image_arguments(kwargs))
        return processed, [self.replace_image_token(processed, index) for index in range(len(flat))]

    def _image_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return kwargs

    def prepare_inputs_layout(  # type: ignore[override]
        self, images: Any = None, text: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        return super().prepare_inputs_layout(images=_read_images(images), text=text, **kwargs)

    def validate_inputs(  # type: ignore[override]
        self, images: Any = None, text: Any = None, **kwargs: Any
    ) -> None:
        if kwargs.get("videos") is not None or kwargs.get("audio") is not None:
            raise ValueError(f"{type(self).__name__} reads images and text only.")
        if not isinstance(text, list) or not all(isinstance(sample, str) for sample in text):
            raise ValueError("`text` must be a string or a list of strings.")
        wanted = [sample.count(self.image_token) for sample in text]
        given = [len(entry) if isinstance(entry, list) else 1 for entry in images or []]
        nested = any(isinstance(entry, list) for entry in images or [])
        if (wanted != given) if nested else (sum(wanted) != sum(given)):
            counts = f"{given} images for {wanted}" if nested else f"{sum(given)} images for {sum(wanted)}"
            raise ValueError(
                f"Got {counts} image placeholders ({self.image_token}) in {len(text)} texts. Write the texts with "
                "`apply_chat_template`, or give `images` without `text` to have them written."
            )

    def _check_special_mm_tokens(self, text: list[str], text_inputs: Any, modalities: list[str]) -> None:
        ids = text_inputs["input_ids"]
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        cut = sum(
            list(row).count(self.image_token_id) != sample.count(self.image_token)
            for row, sample in zip(ids, text, strict=True)
        )
        if cut:
            raise ValueError(
                f"`max_length` would cut image tokens in {cut} of {len(text)} samples, which the model cannot read. "
                "Raise it, or lower `image_size`."
            )

    # --- prompts -----------------------------------------------------------------------------------------------------

    def build_messages(
        self,
        images: Any = None,
        indication: str | None = None,
        observations: Sequence[str] | None = None,
        report: str | None = None,
        *,
        prompt: str | None = None,
    ) -> list[dict[str, Any]]:
        """The chat of one sample, as `apply_chat_template`, pipelines and preference trainers take it.

        Args:
            images: the sample's images: one, a list, or None.
            indication: why the study was made; None, NaN or blank if unknown.
            observations: names of predicted positive observations, to be written into the prompt ("expert prompting").
                An empty list is written as "none"; None writes nothing.
            report: the answer, if there is one.
            prompt: instead of the processor's.

        Returns:
            Messages with `role` and `content`.
        """
        lines = [self.prompt if prompt is None else prompt]
        if not _is_missing(indication):
            lines.append(INDICATION_LINE.format(" ".join(str(indication).split())))
        if observations is not None:
            lines.append(OBSERVATIONS_LINE.format(", ".join(observations) or "none"))
        content: list[dict[str, Any]] = [{"type": "image", "image": image} for image in _as_list(images)]
        content.append({"type": "text", "text": "\n".join(lines)})
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if self.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        if report is not None:
            messages.append({"role": "assistant", "content": report})
        return messages

    @property
    def _control_tokens(self) -> list[str]:
        return [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]

    @property
    def end_token_id(self) -> int:
        """Id of the token that ends a turn in the chat template, the one end token that is learnt.

        Raises:
            ValueError: there is no chat template, or it puts something else before or after an answer.
        """
        start = self.apply_chat_template(self.build_messages(), add_generation_prompt=True)
        whole = self.apply_chat_template(self.build_messages(report=_PROBE))
        if not whole.startswith(start + _PROBE):
            raise ValueError(
                "The chat template does not put an answer right behind its generation prompt (a reasoning model's "
                "does not). Use an Instruct checkpoint, or pass another `chat_template`."
            )
        tail = self.tokenizer(whole[len(start + _PROBE) :], add_special_tokens=False)["input_ids"]
        end = tail[0] if tail else self.tokenizer.eos_token_id
        if end not in self.tokenizer.all_special_ids and end not in self.tokenizer.added_tokens_decoder:
            raise ValueError("The chat template ends an answer with plain text, so no end token can be learnt.")
        return end

    def build_inputs(
        self,
        images: Any = None,
        indication: str | Sequence[str | None] | None = None,
        report: str | Sequence[str] | None = None,
        observations: Sequence[str] | Sequence[Sequence[str] | None] | None = None,
        *,
        prompt: str | None = None,
        max_length: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = "pt",
    ) -> BatchFeature:
        """Model inputs of a batch: to generate from, or with `report` to learn.

        Args:
            images: one entry per sample: an image, a list of images, or None. See `to_rgb_image` for what an image may
                be. An image that is not in a list is a batch of one sample.
            indication: one per sample; None, NaN or blank where unknown.
            report: one per sample. The labels are its tokens and one end token.
            observations: predicted positive names, one list per sample, for expert prompting; see `build_messages`.
            prompt: the instruction, instead of the processor's.
            max_length: most tokens of a row, padding aside. A report that does not fit is cut and gets no end token,
                so that the model does not learn to stop in mid-sentence; how many is logged and added to
                `truncated_reports`. None for no limit.
            padding_side: by default "left" to generate and "right" to learn. The tokenizer's own setting is neither
                read nor changed.
            return_tensors: "pt", "np", or None for lists.

        Returns:
            `input_ids`, `attention_mask` (B, T); with `report` also `labels` (B, T), -100 on prompt and padding; the
            backbone's image inputs (`pixel_values`, ...) if there is an image; Qwen3-VL's `mm_token_type_ids`.

        Raises:
            ValueError: batch sizes differ, an image or text cannot be used, or `max_length` leaves no room behind the
                image tokens and the prompt (with the number of such samples).
        """
        batch = _batch(
            images=_as_batch(images, single=not isinstance(images, (list, tuple))),
            indication=_as_batch(indication, single=isinstance(indication, str)),
            report=_as_batch(report, single=isinstance(report, str)),
            observations=_as_batch(
                observations, single=bool(observations) and all(isinstance(name, str) for name in observations or ())
            ),
        )
        control_tokens = self._control_tokens
        for index, sample in enumerate(batch):
            if report is not None and (not isinstance(sample["report"], str) or not sample["report"].strip()):
                raise ValueError(
                    f"`report` {index} is missing or blank. Leave samples without a report out of training."
                )
            _check_texts(index, {**sample, "prompt": prompt}, control_tokens)
        frames = [
            [to_rgb_image(image, f"image {number} of sample {index}") for number, image in enumerate(images)]
            for index, images in enumerate(_as_list(sample["images"]) for sample in batch)
        ]
        texts = [
            self.apply_chat_template(
                self.build_messages(images, sample["indication"], sample["observations"], prompt=prompt),
                add_generation_prompt=True,
            )
            for images, sample in zip(frames, batch, strict=True)
        ]
        data: dict[str, Any] = {}
        if any(frames):
            data, replacements = self._process_images(frames, return_tensors=return_tensors)
            data = {name: value for name, value in data.items() if name not in self.unused_input_names}
            self.validate_inputs(images=frames, text=texts)
            texts, _ = self.get_text_with_replacements(texts, replacements)
        rows = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        answers = None
        if report is not None:
            reports = [sample["report"].strip() for sample in batch]
            end = self.end_token_id
            answers = [[*ids, end] for ids in self.tokenizer(reports, add_special_tokens=False)["input_ids"]]
        self._check_room(rows, max_length, needed=0 if answers is None else 2)
        if answers is not None:
            answers = self._fit(rows, answers, max_length)
        side = padding_side or ("left" if answers is None else "right")
        if side not in ("left", "right"):
            raise ValueError(f"`padding_side` must be 'left' or 'right', got {side!r}.")
        return BatchFeature({**self._pad(rows, answers, side), **data}, tensor_type=return_tensors)

    def _check_room(self, rows: list[list[int]], max_length: int | None, needed: int) -> None:
        if max_length is None:
            return
        bad = [row for row in rows if len(row) + needed > max_length]
        if bad:
            with_images = sum(self.image_token_id in row for row in bad)
            raise ValueError(
                f"max_length={max_length} would cut the prompt in {len(bad)} of {len(rows)} samples ({with_images} of "
                f"them with image tokens): prompts take up to {max(map(len, rows))} tokens"
                f"{' and a report at least 2 more' if needed else ''}. Raise `max_length`, or lower `image_size`."
            )

    def _fit(self, rows: list[list[int]], answers: list[list[int]], max_length: int | None) -> list[list[int]]:
        if max_length is None:
            return answers
        fitted = [answer[: max_length - len(row)] for row, answer in zip(rows, answers, strict=True)]
        cut = sum(len(a) > len(b) for a, b in zip(answers, fitted, strict=True))
        if cut:
            self.truncated_reports += cut
            logger.warning(
                "%d of %d reports did not fit into max_length=%d behind their prompts and were cut (%d so far); a cut "
                "report has no end token.",
                cut,
                len(rows),
                max_length,
                self.truncated_reports,
            )
        return fitted

    def _pad(self, rows: list[list[int]], answers: list[list[int]] | None, side: str) -> dict[str, Any]:
        sequences, labels = rows, None
        if answers is not None:
            sequences = [row + answer for row, answer in zip(rows, answers, strict=True)]
            labels = [[_IGNORED_LABEL] * len(row) + answer for row, answer in zip(rows, answers, strict=True)]
        data: dict[str, Any] = {
            "input_ids": _pad_rows(sequences, self.tokenizer.pad_token_id, side),
            "attention_mask": _pad_rows([[1] * len(row) for row in sequences], 0, side),
        }
        if self.return_mm_token_type_ids:
            data["mm_token_type_ids"] = self.create_mm_token_type_ids(data["input_ids"])
        if labels is not None:
            data["labels"] = _pad_rows(labels, _IGNORED_LABEL, side)
        return data

    def __call__(
        self,
        images: Any = None,
        text: str | list[str] | None = None,
        indication: Any = None,
        report: Any = None,
        observations: Any = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """With `text`: like any transformers processor of images and text. Without: `build_inputs`.

        Args:
            images: one image, a list, or a list of lists (one per text).
            text: prompts that hold a placeholder per image, as `apply_chat_template` writes them. They are padded on
                the left unless `padding_side` says otherwise, and get no second start token.
            indication, report, observations: see `build_inputs`.
            kwargs: as in [`ProcessorMixin`], or further arguments of `build_inputs`.
        """
        if text is None:
            return self.build_inputs(images, indication, report, observations, **kwargs)
        if indication is not None or report is not None or observations is not None:
            raise ValueError("Give `text`, or `indication`, `report` and `observations` to have the text written.")
        given = {**kwargs, **kwargs.get("text_kwargs", {})}
        if "padding_side" not in given:
            kwargs["padding_side"] = "left"
        bos = self.tokenizer.bos_token
        texts = [text] if isinstance(text, str) else text
        if "add_special_tokens" not in given and bos and all(str(sample).startswith(bos) for sample in texts):
            kwargs["add_special_tokens"] = False
        return super().__call__(images=images, text=text, **kwargs)

    def prepare_sample(self, image: Any, indication: str | None = None) -> dict[str, Any]:
        """One sample for `build_batch`, checked, and its image as small as the model sees it.

        Args:
            image: see `to_rgb_image`.
            indication: None, NaN or blank if unknown.

        Raises:
            ValueError: an image or text that cannot be used.
        """
        _check_texts(0, {"indication": indication, "observations": None}, self._control_tokens)
        return {"image": self._resize(to_rgb_image(image, "image")), "indication": indication}

    def build_batch(
        self, samples: Sequence[dict[str, Any]], observations: Sequence[Sequence[str] | None] | None = None
    ) -> BatchFeature:
        """Inputs to generate from, of samples by `prepare_sample`; see `build_inputs`."""
        return self.build_inputs(
            images=[[sample["image"]] for sample in samples],
            indication=[sample["indication"] for sample in samples],
            observations=observations,
        )

    def decode_reports(self, sequences: Any, inputs: Any) -> list[str]:
        """Generated ids to reports, without the prompt.

        Args:
            sequences: (B * returned sequences, T), what `generate` returned.
            inputs: what it was given, with `input_ids`.
        """
        start = inputs["input_ids"].shape[1]
        return [text.strip() for text in self.batch_decode(sequences[:, start:], skip_special_tokens=True)]

    @property
    def model_input_names(self) -> list[str]:
        names = ["input_ids", "attention_mask", *self.image_processor.model_input_names]
        if self.return_mm_token_type_ids:
            names.append("mm_token_type_ids")
        return [name for name in names if name not in self.unused_input_names]


class LeadQwen3VLProcessor(LeadProcessorMixin):
    """[`LeadProcessorMixin`] for Qwen3-VL."""

    return_mm_token_type_ids = True

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        image_size: int | None = DEFAULT_IMAGE_SIZE,
        prompt: str | None = None,
        system_prompt: str | None = None,
    ) -> None:
        self._set_up(image_processor, tokenizer, chat_template, image_size, prompt, system_prompt)
        self.image_token = getattr(tokenizer, "image_token", None) or "<|image_pad|>"
        self.image_token_id = self._token_id(self.image_token)
        self.token_pixels = image_processor.patch_size * image_processor.merge_size

    def replace_image_token(self, image_inputs: Any, image_idx: int, **kwargs: Any) -> str:
        patches = int(image_inputs["image_grid_thw"][image_idx].prod())
        return self.image_token * (patches // self.image_processor.merge_size**2)


class LeadInternVLProcessor(LeadProcessorMixin):
    """[`LeadProcessorMixin`] for InternVL (the `-hf` checkpoints)."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        image_size: int | None = DEFAULT_IMAGE_SIZE,
        prompt: str | None = None,
        system_prompt: str | None = None,
        image_seq_length: int = 256,
    ) -> None:
        self._set_up(image_processor, tokenizer, chat_template, image_size, prompt, system_prompt)
        self.image_seq_length = image_seq_length  # tokens of a tile of the image processor's own size
        self.image_token = getattr(tokenizer, "context_image_token", None) or "<IMG_CONTEXT>"
        self.image_token_id = self._token_id(self.image_token)
        self.start_image_token = getattr(tokenizer, "start_image_token", None) or "<img>"
        self.end_image_token = getattr(tokenizer, "end_image_token", None) or "</img>"
        self.token_pixels = round(image_processor.size["height"] / image_seq_length**0.5)

    def _image_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"crop_to_patches": self.image_size is None, **kwargs}

    def replace_image_token(self, image_inputs: Any, image_idx: int, **kwargs: Any) -> str:
        side = self.image_side
        tile = self.image_seq_length if side is None else (side // self.token_pixels) ** 2
        tokens = tile * int(image_inputs["num_patches"][image_idx])
        return f"{self.start_image_token}{self.image_token * tokens}{self.end_image_token}"

    @property
    def unused_input_names(self) -> list[str]:
        return ["num_patches"]


class LeadMistral3Processor(LeadProcessorMixin):
    """[`LeadProcessorMixin`] for Mistral 3 and Ministral 3."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        image_size: int | None = DEFAULT_IMAGE_SIZE,
        prompt: str | None = None,
        system_prompt: str | None = None,
        patch_size: int = 14,
        spatial_merge_size: int = 2,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
    ) -> None:
        self._set_up(image_processor, tokenizer, chat_template, image_size, prompt, system_prompt)
        self.patch_size, self.spatial_merge_size = patch_size, spatial_merge_size
        self.image_token, self.image_token_id = image_token, self._token_id(image_token)
        self.image_break_token, self.image_end_token = image_break_token, image_end_token
        self.token_pixels = patch_size * spatial_merge_size

    def _image_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "patch_size": self.token_pixels}

    def replace_image_token(self, image_inputs: Any, image_idx: int, **kwargs: Any) -> str:
        height, width = (int(side) // self.token_pixels for side in image_inputs["image_sizes"][image_idx])
        row = self.image_token * width
        return self.image_break_token.join([row] * height) + self.image_end_token


def _read_images(images: Any) -> Any:
    """A list of RGB images, or of one list per text."""
    if images is None:
        return None
    if not isinstance(images, (list, tuple)) and getattr(images, "ndim", 0) != 4:
        images = [images]
    read: list[Any] = []
    for index, entry in enumerate(images):
        if isinstance(entry, (list, tuple)):
            read.append([to_rgb_image(image, f"image {number} of text {index}") for number, image in enumerate(entry)])
        else:
            read.append(to_rgb_image(entry, f"image {index}"))
    return read


def _is_missing(text: Any) -> bool:
    return text is None or (isinstance(text, float) and text != text) or (isinstance(text, str) and not text.strip())


def _as_list(images: Any) -> list[Any]:
    if images is None:
        return []
    return list(images) if isinstance(images, (list, tuple)) else [images]


def _as_batch(values: Any, single: bool) -> list[Any] | None:
    if values is None:
        return None
    if getattr(values, "ndim", 0) == 4:
        return list(values)
    return [values] if single else list(values)


def _check_texts(index: int, sample: dict[str, Any], control_tokens: list[str]) -> None:
    indication, observations = sample["indication"], sample["observations"]
    if not _is_missing(indication) and not isinstance(indication, str):
        raise ValueError(f"`indication` {index} must be a string or None, got {type(indication).__name__}.")
    if observations is not None and (
        isinstance(observations, str) or not all(isinstance(name, str) for name in observations)
    ):
        raise ValueError(f"`observations` {index} must be a list of names or None.")
    # A patient's text must not be able to write an image placeholder or to end a turn.
    texts = {name: sample.get(name) for name in ("prompt", "indication", "report")}
    for name, text in {**texts, "observations": " ".join(observations or ())}.items():
        found = [token for token in control_tokens if token in text] if isinstance(text, str) else []
        if found:
            raise ValueError(f"`{name}` {index} holds the control tokens {found}. Remove them from the text.")


def _batch(**columns: list[Any] | None) -> list[dict[str, Any]]:
    """Columns to rows; a column that is not given is None in every row."""
    given = {name: values for name, values in columns.items() if values is not None}
    sizes = {name: len(values) for name, values in given.items()}
    if not sizes:
        raise ValueError("Nothing to process: give `text`, or at least one of `images`, `indication` and `report`.")
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"The batch sizes differ: {sizes}. Give one entry per sample, and several images of one sample as a list "
            "in the list."
        )
    count = next(iter(sizes.values()))
    if not count:
        raise ValueError("The batch is empty.")
    return [
        {name: values[index] if values is not None else None for name, values in columns.items()}
        for index in range(count)
    ]


def _pad_rows(rows: list[list[int]], value: int, side: str) -> list[list[int]]:
    width = max(map(len, rows))
    if side == "left":
        return [[value] * (width - len(row)) + row for row in rows]
    return [row + [value] * (width - len(row)) for row in rows]


__all__ = [
    "DEFAULT_PROMPT",
    "LeadInternVLProcessor",
    "LeadMistral3Processor",
    "LeadQwen3VLProcessor",
]
