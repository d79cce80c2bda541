"""The cases of the evaluation page: an image, its two reports statement by statement, and a heat map per sentence."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from .heatmap import SentenceMaps, overlay_png
from .page_experts import CaseExperts, LaidOutExperts, lay_out_experts
from .statements import ReportComparison, Statement, compare_statements

# An occlusion map is scaled to its own maximum, but never below this many nats, so that noise does not glow.
_HEAT_FLOOR = 0.5
_IMAGE_SIDE = 720


@dataclass(frozen=True)
class PageCase:
    """One study of the case viewer.

    Attributes:
        study_id: shown as the case's title.
        image: greyscale image, PIL or (H, W) uint8 / uint16.
        generated: the generated report.
        reference: the reference report; None when there is none (statements are then not judged).
        indication: shown above the reports.
        labels: known label states of the study, else the rule labeller's on the reference.
        maps: sentence maps of the generated report, at most one per method (occlusion, attention).
        split: e.g. "test_shifted", shown beside the title.
        source: the study's data source, e.g. "phantom".
        note: a line under the title, e.g. an image's attribution.
        experts: what the model's pathology experts make of the image; None where it has none.
    """

    study_id: str
    image: Image.Image | np.ndarray
    generated: str
    reference: str | None = None
    indication: str | None = None
    labels: Mapping[str, str | None] | None = None
    maps: Sequence[SentenceMaps] = ()
    split: str | None = None
    source: str = ""
    note: str | None = None
    experts: CaseExperts | None = None


@dataclass(frozen=True)
class LaidOutSentence:
    index: int
    text: str
    verdict: str
    reasons: tuple[str, ...]
    caption: str = ""


@dataclass(frozen=True)
class LaidOutCase:
    anchor: str
    case: PageCase
    image: str
    size: tuple[int, int]
    generated: list[LaidOutSentence]
    reference: list[LaidOutSentence]
    counts: dict[str, int]
    layers: list[dict[str, Any]] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    mapped: frozenset[int] = frozenset()
    selected: int | None = None
    thumbnail: str = ""
    experts: LaidOutExperts | None = None


def lay_out_case(index: int, case: PageCase, *, gate_scale: tuple[float, float] | None = None) -> LaidOutCase:
    picture = _to_grey8(case.image)
    comparison = (
        ReportComparison()
        if case.reference is None
        else compare_statements(case.generated, case.reference, reference_labels=case.labels)
    )
    statements = list(comparison.generated) or _unjudged(case.generated)
    captions, layers, selected = _layers(case, statements)
    thumbnail = picture.copy()
    thumbnail.thumbnail((96, 96))
    return LaidOutCase(
        anchor=f"case-{index}",
        case=case,
        image=_data_uri(picture),
        size=picture.size,
        generated=[
            LaidOutSentence(at, item.text, item.verdict, item.reasons, captions.get(at, ""))
            for at, item in enumerate(statements)
        ],
        reference=[
            LaidOutSentence(at, item.text, item.verdict, item.reasons) for at, item in enumerate(comparison.reference)
        ],
        counts=comparison.counts() if case.reference is not None else {},
        layers=layers,
        methods=[maps.method for maps in case.maps],
        mapped=frozenset(layer["at"] for layer in layers),
        selected=selected,
        thumbnail=_data_uri(thumbnail),
        experts=lay_out_experts(case, gate_scale),
    )


def _unjudged(text: str) -> list[Statement]:
    from ..text.sentences import split_sentences

    return [Statement(text[start:end], start, end, "unjudged") for start, end in split_sentences(text)]


def _layers(
    case: PageCase, statements: Sequence[Statement]
) -> tuple[dict[int, str], list[dict[str, Any]], int | None]:
    """Heat map pictures, a caption per sentence, and the sentence shown first (the one with most evidence)."""
    at_start = {item.start: at for at, item in enumerate(statements)}
    captions: dict[int, list[str]] = {}
    layers = []
    strongest: tuple[float, int] | None = None
    for maps in case.maps:
        for (start, _), heat in zip(maps.spans, maps.maps, strict=True):
            if start not in at_start or not np.isfinite(heat).all():
                continue  # a sentence beyond the model's longest text has no map
            at = at_start[start]
            top = float(heat.max())
            if maps.method == "occlusion":
                scale = max(top, _HEAT_FLOOR)
                text = (
                    f"Covering the brightest spot makes this sentence {_times(top)} less likely."
                    if top >= 0.05
                    else "Covering any one spot leaves this sentence as likely: it does not hang on one place."
                )
                captions.setdefault(at, []).append(text)
                if strongest is None or top > strongest[0]:
                    strongest = (top, at)
            else:
                scale = top
            url = "data:image/png;base64," + base64.b64encode(overlay_png(heat, scale=scale)).decode()
            layers.append({"at": at, "method": maps.method, "url": url})
    selected = strongest[1] if strongest else (0 if layers else None)
    return {at: " ".join(texts) for at, texts in captions.items()}, layers, selected


def _times(nats: float) -> str:
    ratio = math.exp(min(nats, 20.0))
    if ratio >= 1000:
        return "more than 1,000 times"
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def _to_grey8(image: Image.Image | np.ndarray) -> Image.Image:
    """8-bit picture for display, at most `_IMAGE_SIDE` a side. Wider depths are stretched to their own range."""
    array = np.asarray(image if not isinstance(image, Image.Image) or image.mode[0] in "LI" else image.convert("L"))
    if array.ndim != 2 or not array.size:
        raise ValueError(f"A case's image must be greyscale of shape (H, W), got {array.shape}.")
    if array.dtype != np.uint8:
        low, high = float(array.min()), float(array.max())
        array = ((array - low) * (255.0 / (high - low if high > low else 1.0))).round().astype(np.uint8)
    picture = Image.fromarray(array, "L")
    picture.thumbnail((_IMAGE_SIDE, _IMAGE_SIDE), Image.Resampling.LANCZOS)
    return picture


def _data_uri(picture: Image.Image) -> str:
    """PNG for small pictures, where JPEG's blocks would show; JPEG for large ones."""
    buffer = io.BytesIO()
    if max(picture.size) <= 256:
        picture.save(buffer, "PNG", optimize=True)
        kind = "png"
    else:
        picture.save(buffer, "JPEG", quality=88)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
