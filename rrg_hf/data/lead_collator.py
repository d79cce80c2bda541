"""`DataCollatorForLead`: `Study` rows to the tensors that a LEAD model learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ConfigError, DataError
from ..text.cleaning import CLEANERS, is_missing
from .collators import study_image

# What `encode` needs besides the tensors, in batches whose prompts name predicted observations.
SAMPLES = "samples"


@dataclass
class DataCollatorForLead:
    """Turns a list of `Study` rows into one batch: chat prompt with the study's image, and the report to learn.

    Args:
        processor: a LEAD processor.
        section (`str`, *optional*, defaults to `"findings"`): the report section that is the target.
        cleaning (`str`, *optional*, defaults to `"default"`): a key of `rrg_hf.text.cleaning.CLEANERS`.
        use_indication (`bool`, *optional*, defaults to `True`): whether prompts carry the indication.
        max_length (`int`, *optional*): most tokens of prompt and report; see the processor's `build_inputs`.
        keep_samples (`bool`, *optional*, defaults to `False`): whether a batch also carries "samples", from which
            `encode` writes other prompts (expert prompting).

    Returns (on call):
        What `build_inputs` returns, padded on the right, with `labels`; `expert_labels` (B, C) float32 where the rows
        have them.

    Raises:
        ConfigError: unknown cleaning.
        DataError: on call, a row without a readable image or without the section; named by study id.
    """

    processor: Any
    section: str = "findings"
    cleaning: str = "default"
    use_indication: bool = True
    max_length: int | None = None
    keep_samples: bool = False

    def __post_init__(self) -> None:
        if self.cleaning not in CLEANERS:
            raise ConfigError(f"cleaning is {self.cleaning!r}; use one of {sorted(CLEANERS)}.")

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        samples = [self.sample(row) for row in rows]
        batch = self.encode(samples)
        if all(row.get("expert_labels") is not None for row in rows):
            batch["expert_labels"] = torch.tensor([row["expert_labels"] for row in rows], dtype=torch.float32)
        if self.keep_samples:
            batch[SAMPLES] = samples
        return batch

    def sample(self, row: Mapping[str, Any], *, with_report: bool = True) -> dict[str, Any]:
        """What a prompt is written from: {"image", "indication", "report", "study_id"}.

        Args:
            row: a `Study` row.
            with_report: whether the report is needed; without, it is None.
        """
        clean = CLEANERS[self.cleaning]
        indication, text = row.get("indication"), row.get(self.section)
        report = None
        if with_report:
            report = "" if is_missing(text) else clean(str(text))
            if not report:
                raise DataError(
                    f"Study {row.get('study_id')!r} has no {self.section} to learn from. Leave such studies out "
                    "(LeadTrainer does and counts them)."
                )
        usable = self.use_indication and not is_missing(indication)
        return {
            "image": study_image(row),
            "indication": clean(str(indication)) or None if usable else None,
            "report": report,
            "study_id": row.get("study_id"),
        }

    def encode(
        self, samples: Sequence[Mapping[str, Any]], observations: Sequence[Sequence[str] | None] | None = None
    ) -> dict[str, Any]:
        """Model inputs of samples; to learn from where they have reports, else to generate from.

        Args:
            samples: see `sample`; all with a report or all without.
            observations: predicted positive names per sample, for expert prompting.
        """
        reports = [sample["report"] for sample in samples]
        try:
            return dict(
                self.processor.build_inputs(
                    images=[[sample["image"]] for sample in samples],
                    indication=[sample["indication"] for sample in samples],
                    report=None if reports[0] is None else reports,
                    observations=observations,
                    max_length=self.max_length if reports[0] is not None else None,
                )
            )
        except ValueError as error:
            names = ", ".join(repr(sample["study_id"]) for sample in samples[:4])
            raise DataError(f"A batch with the studies {names} cannot be encoded: {error}") from error
