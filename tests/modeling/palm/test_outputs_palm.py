"""What the forward passes return: as a dict, as attributes, as a tuple without what is absent."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rrg_hf.modeling.palm.outputs_palm import PalmModelOutput, PalmReportGenerationOutput


def test_the_reports_output_has_all_that_the_models_has() -> None:
    inner = {field.name for field in dataclasses.fields(PalmModelOutput)} - {"last_hidden_state"}
    outer = [field.name for field in dataclasses.fields(PalmReportGenerationOutput)]
    assert inner < set(outer)
    assert outer[:2] == ["loss", "logits"]  # what a tuple begins with, as `Trainer` expects it


@pytest.mark.parametrize("kind", [PalmModelOutput, PalmReportGenerationOutput])
def test_what_is_absent_is_not_in_the_tuple(kind: type) -> None:
    memory = torch.ones(1, 2, 3)
    output = kind(encoder_last_hidden_state=memory)
    assert output.to_tuple() == (memory,) and list(output) == ["encoder_last_hidden_state"]
    assert output["encoder_last_hidden_state"] is output.encoder_last_hidden_state is memory
    assert output.cache is None and output.attentions is None


def test_every_field_is_documented() -> None:
    for kind in (PalmModelOutput, PalmReportGenerationOutput):
        documented = (PalmModelOutput.__doc__ or "") + (kind.__doc__ or "")
        missing = [field.name for field in dataclasses.fields(kind) if f"{field.name}:" not in documented]
        assert not missing
