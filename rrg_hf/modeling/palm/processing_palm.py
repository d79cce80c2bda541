"""Processor of PALM: radiographs, indications, prompts and reports to tensors, and generated ids back to text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ProcessorMixin
from transformers.utils import logging

logger = logging.get_logger(__name__)

MIN_IMAGE_SIDE = 8
_IGNORED_LABEL = -100


def to_rgb_image(image: Any, name: str = "image") -> Image.Image:
    """One radiograph as an 8-bit RGB image.

    Args:
        image: PIL image of any mode, or an array or tensor: (H, W), (H, W, C) or (C, H, W) with C of 1, 3 or 4.
            8-bit values are taken as they are. 16-bit values are scaled by 255 / 65535, never clipped. Floating-point
            values are 0..1, or 0..255 when the largest exceeds 1. Wider integers are 8-bit when none exceeds 255,
            16-bit otherwise. An alpha channel is dropped.
        name: how to call it in errors.

    Returns:
        An RGB image of the same size; greyscale is repeated over the channels.

    Raises:
        ValueError: not an image, empty, smaller than 8 x 8 pixels, NaN, infinite or negative pixels, or values
            beyond 16 bits.
    """
    if isinstance(image, (str, os.PathLike, bytes)):
        raise ValueError(
            f"{name} is a path or raw bytes. Read it first, for example with `rrg_hf.read_image` or `PIL.Image.open`."
        )
    if isinstance(image, Image.Image):
        _check_size(image.height, image.width, name)
        if not image.mode.startswith("I") and image.mode != "F":
            return image.convert("RGB")
        array = np.asarray(image)
        if image.mode.startswith("I;16"):
            array = array.astype(np.uint16)
    else:
        if hasattr(image, "detach"):
            image = image.detach().cpu()
            image = image.float().numpy() if image.is_floating_point() else image.numpy()
        array = np.asarray(image)
    if array.dtype == object or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise ValueError(
            f"{name} is not an image: got {type(image).__name__}. Give a PIL image, an array or a tensor."
        )
    array = _channels_last(array, name)
    _check_size(array.shape[0], array.shape[1], name)
    return Image.fromarray(np.repeat(_to_uint8(array, name), 3 // array.shape[2], axis=2))


def _check_size(height: int, width: int, name: str) -> None:
    if min(height, width) < MIN_IMAGE_SIDE:
        raise ValueError(
            f"{name} is {width} x {height} pixels. A radiograph needs at least {MIN_IMAGE_SIDE} x {MIN_IMAGE_SIDE}; "
            "the file is probably a placeholder or was cut off."
        )


def _channels_last(array: np.ndarray, name: str) -> np.ndarray:
    """(H, W, 1) or (H, W, 3), without alpha."""
    if array.ndim == 2:
        return array[..., None]
    if array.ndim == 3:
        if array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
            array = np.moveaxis(array, 0, -1)
        if array.shape[-1] in (1, 3, 4):
            return array[..., :3]
    raise ValueError(
        f"{name} has shape {array.shape}. Give one frame as (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, "
        "and several images as a list."
    )


def _to_uint8(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} has NaN or infinite pixels. Check how it was decoded.")
    if values.min() < 0:
        raise ValueError(f"{name} has negative pixels. Rescale it to 0..255 first (raw DICOM: `rrg_hf.read_image`).")
    largest = values.max()
    if array.dtype == np.uint16:
        limit = 65535.0
    elif np.issubdtype(array.dtype, np.floating):
        limit = 1.0 if largest <= 1 else 255.0
    else:
        limit = 255.0 if largest <= 255 else 65535.0
    if largest > limit:
        raise ValueError(f"{name} has pixels up to {largest:g}, beyond its value range. Rescale it to 0..255 first.")
    return np.rint(values * (255.0 / limit)).astype(np.uint8)


def _is_missing(text: Any) -> bool:
    return text is None or (isinstance(text, float) and text != text) or (isinstance(text, str) and not text.strip())


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _check_texts(texts: list[Any], name: str, *, allow_missing: bool = False) -> list[str | None]:
    checked: list[str | None] = []
    for index, text in enumerate(texts):
        if allow_missing and _is_missing(text):
            checked.append(None)
        elif isinstance(text, str):
            checked.append(text)
        else:
            wanted = "a string or None" if allow_missing else "a string"
            raise ValueError(f"`{name}` {index} must be {wanted}, got {type(text).__name__}.")
    return checked


class PalmProcessor(ProcessorMixin):
    r"""Image processor, decoder tokenizer and text-encoder tokenizer of PALM in one.

    GPT-2 has no padding token. If the decoder's tokenizer has none, its EOS token pads; the labels still hold the EOS
    that ends a report, because they are masked by the attention mask and not by token id. (Collators that mask by id,
    as `DataCollatorForLanguageModeling` does, would hide it and the model would never learn to stop.)

    Args:
        image_processor: of the vision backbone, e.g. rad-dino's `BitImageProcessor`. Works without torchvision.
        tokenizer: of the decoder (GPT-2).
        text_tokenizer: of the text encoder (BERT); it reads reports for alignment, and indications.
        report_max_length (`int`, *optional*, defaults to 256): decoder tokens of a report, BOS and EOS included.
        indication_max_length (`int`, *optional*, defaults to 64): text-encoder tokens of an indication.
        text_max_length (`int`, *optional*, defaults to 512): text-encoder tokens of a report.
        chat_template: not used by PALM; kept for tools that look for one.

    Example:

    ```python
    >>> inputs = processor(images=[image_1, image_2], indication=["Cough.", None], report=["Clear lungs.", "Edema."])
    >>> sorted(inputs)
    ['attention_mask', 'indication_attention_mask', 'indication_input_ids', 'input_ids', 'labels', 'pixel_values',
     'report_attention_mask', 'report_input_ids']
    ```"""

    text_tokenizer: Any

    def __init__(
        self,
        image_processor: Any,
        tokenizer: Any,
        text_tokenizer: Any,
        report_max_length: int = 256,
        indication_max_length: int = 64,
        text_max_length: int = 512,
        chat_template: str | None = None,
    ) -> None:
        for name, value in {
            "report_max_length": report_max_length,
            "indication_max_length": indication_max_length,
            "text_max_length": text_max_length,
        }.items():
            if value < 3:
                raise ValueError(f"`{name}` must be at least 3 (two special tokens and one of text), got {value}.")
        if tokenizer.eos_token_id is None:
            raise ValueError("The decoder's tokenizer has no EOS token; PALM could not learn where a report ends.")
        if tokenizer.bos_token_id is None:
            tokenizer.bos_token = tokenizer.eos_token
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if text_tokenizer.pad_token_id is None or text_tokenizer.cls_token_id is None:
            # Also the case of a folder that lacks text_tokenizer/: transformers then loads the decoder's twice.
            raise ValueError(
                "The text encoder's tokenizer has no [PAD] or [CLS] token. Give a BERT tokenizer; in a saved "
                "processor it stands in the folder text_tokenizer."
            )
        for plain in (tokenizer, text_tokenizer):
            # CXR-BERT's names remote code for what is a plain BertTokenizer. Saved along, it would be looked for
            # beside the processor and not be found.
            plain.init_kwargs.pop("auto_map", None)
        self.report_max_length = report_max_length
        self.indication_max_length = indication_max_length
        self.text_max_length = text_max_length
        super().__init__(image_processor, tokenizer, text_tokenizer, chat_template=chat_template)

    @classmethod
    def from_backbones(
        cls,
        vision: str | os.PathLike[str],
        text: str | os.PathLike[str],
        decoder: str | os.PathLike[str],
        *,
        hub_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> PalmProcessor:
        """The processor for a model of `PalmForReportGeneration.from_backbones`.

        Args:
            vision: folder or Hub id with a preprocessor_config.json.
            text: with the BERT tokenizer; its remote code is not run.
            decoder: with the GPT-2 tokenizer.
            hub_kwargs: download options such as `revision`, for all three.
            kwargs: further arguments of the processor.
        """
        from transformers import AutoImageProcessor, AutoTokenizer, BertTokenizer

        hub_kwargs = dict(hub_kwargs or {})
        return cls(
            AutoImageProcessor.from_pretrained(os.fspath(vision), **hub_kwargs),
            AutoTokenizer.from_pretrained(os.fspath(decoder), **hub_kwargs),
            BertTokenizer.from_pretrained(os.fspath(text), **hub_kwargs),
            **kwargs,
        )

    def __call__(
        self,
        images: Any = None,
        text: str | Sequence[str] | None = None,
        indication: str | Sequence[str | None] | None = None,
        report: str | Sequence[str] | None = None,
        return_tensors: str | None = "pt",
        max_length: int | None = None,
        padding: bool | str = True,
        padding_side: str | None = None,
        add_special_tokens: bool = True,
        **kwargs: Any,
    ) -> BatchFeature:
        """
        Args:
            images: one image per study: a PIL image, array or tensor, a list of those, or a list with one-element
                lists. See `to_rgb_image` for what an image may hold.
            text: prompts that the decoder goes on from. BOS is put in front, and shorter ones are padded on the left.
            indication: why the study was made; None, NaN or blank for studies without one.
            report: target reports. For the decoder: BOS, tokens, EOS, padded on the right. A report longer than
                `max_length` is cut and gets no EOS, so that the model does not learn to stop in mid-sentence.
            return_tensors: "pt", "np", or None for lists.
            max_length: cap on decoder tokens; `report_max_length` by default for reports, none for prompts.
            padding: as in tokenizers, for the decoder's ids.
            padding_side: "left" or "right", to override the sides above.
            add_special_tokens: False leaves out BOS and EOS.
            kwargs: passed to the image processor.

        Returns:
            A `BatchFeature` with, as far as their source is given: `pixel_values` (B, 3, H, W); `input_ids` and
            `attention_mask` (B, T) from `text` or `report`; `labels` (B, T), -100 on padding, from `report`;
            `report_input_ids` and `report_attention_mask` (B, N_T); `indication_input_ids` and
            `indication_attention_mask` (B, N_Ind), where a study without indication is all padding. The last two are
            absent when no study has an indication.

        Raises:
            ValueError: nothing given, both `text` and `report`, batch sizes that differ, more than one image for a
                study, or an image that `to_rgb_image` refuses.
        """
        if text is not None and report is not None:
            raise ValueError("Give `text` (a prompt to go on from) or `report` (a target to learn), not both.")
        if images is None and text is None and report is None and indication is None:
            raise ValueError("Nothing to process: give at least one of `images`, `text`, `indication` and `report`.")
        data: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        if images is not None:
            frames = self._one_image_per_study(images)
            sizes["images"] = len(frames)
            data.update(self.image_processor(images=frames, return_tensors=return_tensors, **kwargs))
        elif kwargs:
            raise ValueError(f"PalmProcessor does not know the arguments {sorted(kwargs)}.")
        if text is not None:
            prompts = _check_texts(_as_list(text), "text")
            sizes["text"] = len(prompts)
            data.update(
                self._decoder_tokens(
                    prompts, max_length, padding, padding_side or "left", bos=add_special_tokens, eos=False
                )
            )
        if report is not None:
            reports = _check_texts(_as_list(report), "report")
            sizes["report"] = len(reports)
            tokens = self._decoder_tokens(
                reports,
                max_length or self.report_max_length,
                padding,
                padding_side or "right",
                bos=add_special_tokens,
                eos=add_special_tokens,
            )
            tokens["labels"] = [
                [token if seen else _IGNORED_LABEL for token, seen in zip(ids, mask, strict=True)]
                for ids, mask in zip(tokens["input_ids"], tokens["attention_mask"], strict=True)
            ]
            data.update(tokens)
            encoded = self._text_tokens(reports, self.text_max_length)
            data["report_input_ids"], data["report_attention_mask"] = encoded["input_ids"], encoded["attention_mask"]
        if indication is not None:
            indications = _check_texts(_as_list(indication), "indication", allow_missing=True)
            sizes["indication"] = len(indications)
            if any(entry is not None for entry in indications):
                encoded = self._text_tokens(indications, self.indication_max_length)
                data["indication_input_ids"] = encoded["input_ids"]
                data["indication_attention_mask"] = encoded["attention_mask"]
        if len(set(sizes.values())) > 1:
            raise ValueError(f"The batch sizes differ: {sizes}. Give one image, one report, ... per study.")
        return BatchFeature(data, tensor_type=return_tensors)

    @property
    def end_token_id(self) -> int:
        """Id of the token that ends a report."""
        return self.tokenizer.eos_token_id

    def prepare_sample(self, image: Any, indication: str | None = None) -> dict[str, Any]:
        """One sample for `build_batch`: {"pixel_values": (1, 3, H, W), "indication": text or None}."""
        return {"pixel_values": self(images=[image])["pixel_values"], "indication": indication}

    def build_batch(self, samples: Sequence[dict[str, Any]]) -> BatchFeature:
        """Inputs to generate from, of samples by `prepare_sample`."""
        data = {"pixel_values": torch.cat([sample["pixel_values"] for sample in samples])}
        indications = [sample["indication"] for sample in samples]
        if any(text is not None for text in indications):
            data.update(self(indication=indications))
        return BatchFeature(data)

    def decode_reports(self, sequences: Any, inputs: Any = None) -> list[str]:
        """Generated ids (B, T) to reports."""
        return self.batch_decode(sequences, skip_special_tokens=True)

    def _one_image_per_study(self, images: Any) -> list[Image.Image]:
        if isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4:
            studies = list(images)
        else:
            studies = [images]
        if not studies:
            raise ValueError("`images` is empty.")
        frames = []
        for index, study in enumerate(studies):
            if isinstance(study, (list, tuple)):
                if len(study) != 1:
                    raise ValueError(
                        f"Study {index} has {len(study)} images, but PALM reads one per study. Choose one, usually "
                        "the first frontal view, or process the images as studies of their own."
                    )
                study = study[0]
            frames.append(to_rgb_image(study, f"image {index}"))
        return frames

    def _decoder_tokens(
        self,
        texts: list[Any],
        max_length: int | None,
        padding: bool | str,
        padding_side: str,
        *,
        bos: bool,
        eos: bool,
    ) -> dict[str, Any]:
        prefix = [self.tokenizer.bos_token_id] if bos else []
        suffix = [self.tokenizer.eos_token_id] if eos else []
        sequences = []
        cut = 0
        for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]:
            sequence = [*prefix, *ids, *suffix]
            if bos and not eos and ids[:1] == prefix:
                sequence = ids  # the prompt brings its own BOS
            if max_length is not None and len(sequence) > max_length:
                sequence = sequence[:max_length]
                cut += 1
            sequences.append(sequence)
        if cut:
            logger.warning_once(
                "%d of %d texts are longer than %s decoder tokens and were cut; a cut report has no EOS.",
                cut,
                len(texts),
                max_length,
            )
        padded = self.tokenizer.pad(
            {"input_ids": sequences},
            padding=padding,
            padding_side=padding_side,
            max_length=max_length if padding == "max_length" else None,
            return_attention_mask=True,
        )
        return {"input_ids": padded["input_ids"], "attention_mask": padded["attention_mask"]}

    def _text_tokens(self, texts: list[Any], max_length: int) -> dict[str, Any]:
        """Text-encoder ids, padded on the right. A missing text is all padding."""
        encoded = self.text_tokenizer(
            [text or "" for text in texts],
            truncation=True,
            max_length=min(max_length, self.text_tokenizer.model_max_length),
            padding=True,
            padding_side="right",
            return_attention_mask=True,
        )
        ids, masks = encoded["input_ids"], encoded["attention_mask"]
        for row, text in enumerate(texts):
            if text is None:
                ids[row] = [self.text_tokenizer.pad_token_id] * len(ids[row])
                masks[row] = [0] * len(masks[row])
        return {"input_ids": ids, "attention_mask": masks}

    @property
    def model_input_names(self) -> list[str]:
        return ["pixel_values", "input_ids", "attention_mask", "indication_input_ids", "indication_attention_mask"]


__all__ = ["PalmProcessor", "to_rgb_image"]
