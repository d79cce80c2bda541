"""`DataCollatorForPalm`: `Study` rows to the tensors that one stage of PALM reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..errors import ConfigError, DataError, ImageReadError
from ..text.cleaning import CLEANERS, is_missing
from .images import read_image

# The columns the collators read; the trainer drops the others so that masks, for instance, are never decoded.
STUDY_COLUMNS = (
    "study_id",
    "images",
    "views",
    "indication",
    "findings",
    "impression",
    "source",
    "expert_labels",
)


def frontal_image_index(row: Mapping[str, Any]) -> int:
    """Which of a study's images a one-image model looks at: the first frontal one, else the first not known to be
    lateral, else the first.

    Args:
        row: a `Study` row; `views` may be absent.

    Raises:
        DataError: the study has no image.
    """
    images = row.get("images")
    if not images:
        raise DataError(f"Study {row.get('study_id')!r} has no image, and the model reads one. Leave the study out.")
    views = list(row.get("views") or [])[: len(images)]
    for wanted in ("frontal", "unknown"):
        if wanted in views:
            return views.index(wanted)
    return 0


def study_image(row: Mapping[str, Any]) -> Image.Image:
    """The image of a study that a one-image model looks at, 8-bit greyscale (mode "L").

    Args:
        row: a `Study` row whose images are PIL images, arrays, paths, bytes or undecoded `{bytes, path}` structs.

    Raises:
        DataError: no image, or one that cannot be read; the message names the study.
    """
    source = row["images"][frontal_image_index(row)]
    if isinstance(source, Mapping):
        source = source.get("bytes") or source.get("path") or b""
    try:
        return read_image(source)
    except ImageReadError as error:
        raise DataError(f"Study {row.get('study_id')!r}: {error}") from error


def process_images(processor: Any, rows: Sequence[Mapping[str, Any]], *, return_tensors: str) -> Any:
    """(B, 3, H, W) pixel values of the rows' images, as an image processor makes them.

    Raises:
        DataError: an image that cannot be read or processed; the message names the study.
    """
    images = [study_image(row) for row in rows]
    try:
        return processor(images=images, return_tensors=return_tensors)["pixel_values"]
    except ValueError:
        for row, image in zip(rows, images, strict=True):
            try:
                processor(images=[image])
            except ValueError as error:
                raise DataError(f"Study {row.get('study_id')!r}: {error}") from error
        raise


@dataclass
class DataCollatorForPalm:
    """Turns a list of `Study` rows into one batch for a stage of PALM.

    Args:
        processor (`PalmProcessor`): image processor and both tokenizers.
        stage (`str`, *optional*, defaults to `"generate"`): "mem", "align" or "generate".
        section (`str`, *optional*, defaults to `"findings"`): the report section that is the target.
        cleaning (`str`, *optional*, defaults to `"default"`): a key of `rrg_hf.text.cleaning.CLEANERS`.
        use_indication (`bool`, *optional*, defaults to `True`): whether "generate" batches carry the indication.
        max_length (`int`, *optional*): longest report in decoder tokens; the processor's `report_max_length` by
            default. The text encoder's lengths are the processor's `text_max_length` and `indication_max_length`.

    Returns (on call):
        `pixel_values` (B, 3, H, W) in every stage; for "align" also `report_input_ids` and `report_attention_mask`
        (B, N_T) of the text encoder; for "generate" `input_ids`, `attention_mask` and `labels` (B, L) of the decoder
        and, where at least one study of the batch has an indication, `indication_input_ids` and
        `indication_attention_mask` (B, N_Ind).

    A row may bring `pixel_values` (C, H, W) itself (see `rrg_hf.data.pixel_cache`); its images are then not looked at.

    Raises:
        ConfigError: unknown stage or cleaning.
        DataError: on call, a row without a readable image or, but for "mem", without the section; named by study id.

    Example:

    ```python
    >>> collator = DataCollatorForPalm(processor, stage="align")
    >>> sorted(collator([dataset[0], dataset[1]]))
    ['pixel_values', 'report_attention_mask', 'report_input_ids']
    ```
    """

    processor: Any
    stage: str = "generate"
    section: str = "findings"
    cleaning: str = "default"
    use_indication: bool = True
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.stage not in ("mem", "align", "generate"):
            raise ConfigError(f"PALM has no stage {self.stage!r}; its stages are mem, align, generate.")
        if self.cleaning not in CLEANERS:
            raise ConfigError(f"cleaning is {self.cleaning!r}; use one of {sorted(CLEANERS)}.")

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        batch = {"pixel_values": self.pixel_values(rows)}
        if self.stage == "mem":
            return batch
        reports = [self._report(row) for row in rows]
        encoded = self.processor(report=reports, return_tensors="pt", max_length=self.max_length)
        if self.stage == "align":
            return {**batch, **{name: encoded[name] for name in ("report_input_ids", "report_attention_mask")}}
        batch |= {name: encoded[name] for name in ("input_ids", "attention_mask", "labels")}
        return batch | self.indications(rows)

    def pixel_values(self, rows: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        """(B, 3, H, W) float32 of the rows' images, or of the pixel values they bring."""
        if all("pixel_values" in row for row in rows):
            stacked = torch.from_numpy(np.stack([row["pixel_values"] for row in rows])).float()
            # A cache keeps one channel where the processor makes three equal ones.
            return stacked.expand(-1, 3, -1, -1).contiguous() if stacked.shape[1] == 1 else stacked
        return process_images(self.processor, rows, return_tensors="pt")

    def indications(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Token ids and mask (B, N_Ind) of the indications; empty where no row has one or they are not used."""
        if not self.use_indication:
            return {}
        clean = CLEANERS[self.cleaning]
        texts = [None if is_missing(row.get("indication")) else clean(row["indication"]) or None for row in rows]
        if not any(texts):
            return {}
        encoded = self.processor(indication=texts, return_tensors="pt")
        return {name: encoded[name] for name in ("indication_input_ids", "indication_attention_mask")}

    def _report(self, row: Mapping[str, Any]) -> str:
        text = row.get(self.section)
        cleaned = "" if is_missing(text) else CLEANERS[self.cleaning](text)
        if not cleaned:
            raise DataError(
                f"Study {row.get('study_id')!r} has no {self.section} to learn from. Leave such studies out "
                "(PalmTrainer does and counts them)."
            )
        return cleaned
