"""The order of the stages and what each one trains."""

from __future__ import annotations

import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from rrg_hf.trainers.palm_stages import check_stage_order, fit_lengths, loss_names, set_trainable

from .conftest import tiny_args


@pytest.mark.parametrize(
    ("stage", "finished", "skip"),
    [
        ("mem", None, []),
        ("align", "mem", []),
        ("generate", "align", []),
        ("align", None, ["mem"]),
        ("generate", "mem", ["align"]),
        ("generate", None, ["mem", "align"]),
        ("mem", "align", ["align"]),
        ("generate", "generate", []),
    ],
)
def test_allowed_orders(stage: str, finished: str | None, skip: list[str]) -> None:
    check_stage_order(stage, finished, skip)


@pytest.mark.parametrize(
    ("stage", "finished", "skip", "named"),
    [
        ("generate", None, [], "'mem' and 'align' must come first"),
        ("generate", "mem", [], "'align' must come first"),
        ("align", None, [], "'mem' must come first"),
        ("generate", None, ["mem"], "'align' must come first"),
        ("mem", "align", [], "would undo 'align'"),
        ("mem", "generate", ["align"], "would undo 'generate'"),
        ("align", "generate", [], "would undo 'generate'"),
    ],
)
def test_wrong_orders_are_refused(stage: str, finished: str | None, skip: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_stage_order(stage, finished, skip)


def test_parts_that_train(palm: PalmForReportGeneration) -> None:
    def trained() -> set[str]:
        return {name.split(".")[1] for name, weight in palm.named_parameters() if weight.requires_grad}

    encoders = {"vision_model", "text_model", "image_projection", "text_projection"}
    set_trainable(palm, "mem")
    assert trained() == {"vision_model"}
    set_trainable(palm, "align")
    assert trained() == encoders | {"prototypes"}
    set_trainable(palm, "generate")
    assert trained() == encoders | {"fusion", "decoder"}
    set_trainable(palm, "generate", use_indication=False)
    assert trained() == {"vision_model", "image_projection", "fusion", "decoder"}


def test_loss_names(palm: PalmForReportGeneration) -> None:
    assert loss_names("mem", palm.config) == ("mem_loss",)
    assert loss_names("align", palm.config) == ("multi_loss", "uni_loss")
    assert loss_names("generate", palm.config) == ("gen_loss",)
    palm.config.alignment = "contrastive"
    assert loss_names("align", palm.config) == ("contrastive_loss",)


def test_lengths_are_fitted_or_refused(
    palm: PalmForReportGeneration, palm_dir: object, tmp_path: object, processor: PalmProcessor
) -> None:
    own = PalmProcessor(processor.image_processor, processor.tokenizer, processor.text_tokenizer)
    assert (own.report_max_length, own.text_max_length) == (256, 512)
    fit_lengths(palm, own, tiny_args(str(tmp_path), "generate"))
    assert (own.report_max_length, own.text_max_length, own.indication_max_length) == (96, 64, 64)
    for name, value in {"max_report_length": 97, "generation_max_new_tokens": 96}.items():
        with pytest.raises(ConfigError, match=f"{name} needs 97 positions, but the decoder has 96"):
            fit_lengths(palm, own, tiny_args(str(tmp_path), "generate", **{name: value}))
    fit_lengths(palm, own, tiny_args(str(tmp_path), "align", max_report_length=97))
