"""What the evaluation page shows of pathology experts: their scores, their probabilities per case, and the gates."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..observations import LabelState
from .charts import LineChart, line_chart, score_cell

if TYPE_CHECKING:
    from .gates import ReportGates
    from .page_cases import PageCase

# (image, report, indication) -> what the experts make of it
ReadExperts = Callable[[Image.Image, str, "str | None"], "CaseExperts"]

# Of a gate strip, in pixels. A word is written along its column, so a column is as wide as a line is high.
_COLUMN = 13
_ROWS = (5, 16)
_STRIP_HEIGHT = 190
_LETTER = 6.2
_LONGEST_WORD = 20
# The strips' colours span at least this much, so that noise does not glow.
_SMALLEST_SPAN = 0.02
# Anchors of a ramp of even steps in lightness that reads without red and green (viridis).
_RAMP = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=float)
_TOP_WORDS = 6
_UNLABELLED = "no label"


@dataclass(frozen=True)
class CaseExperts:
    """What the experts of a model make of one case.

    Attributes:
        probabilities: expert to its probability.
        threshold: the probability from which an observation counts as predicted.
        gates: over the generated report; None without a gate or a report.
    """

    probabilities: Mapping[str, float]
    threshold: float = 0.5
    gates: ReportGates | None = None


@dataclass(frozen=True)
class ExpertRow:
    name: str
    text: str
    width: float
    predicted: bool
    reference: str
    verdict: str  # of "right", "wrong", "invented", "missed"; "" where there is nothing to say


@dataclass(frozen=True)
class WordColumn:
    text: str  # shortened
    whole: str
    left: float
    width: float
    middle: float
    mean: str
    share: float  # of the page's colour scale, in per cent
    layers: str
    strongest: int  # layer, counted from 1


@dataclass(frozen=True)
class GateStrip:
    """Layers by tokens as a picture of one pixel a cell, the words under their columns. Sizes in pixels."""

    url: str
    width: float
    height: float
    depth: float  # of the words' labels below it
    layers: int
    words: tuple[WordColumn, ...]
    widest: str
    summary: str


@dataclass(frozen=True)
class LaidOutExperts:
    rows: tuple[ExpertRow, ...]
    threshold: float
    threshold_text: str
    strip: GateStrip | None


def read_experts_with(model: Any, processor: Any) -> ReadExperts:
    """Probabilities and gates by a LEAD model, for `with_experts`; prompts as the model's configuration has them."""
    from .experts import image_probabilities, require_experts
    from .gates import report_gates

    config = require_experts(model)

    def read(image: Image.Image, report: str, indication: str | None) -> CaseExperts:
        found = image_probabilities(model, processor, [image])
        observations = None
        if config.expert_prompting:
            inner = model.get_base_model() if hasattr(model, "get_base_model") else model
            observations = inner.predicted_observations(found)[0]
        gates = report_gates(model, processor, image, report, indication=indication, observations=observations)
        probabilities = dict(zip(config.expert_names, map(float, found[0]), strict=True))
        return CaseExperts(probabilities, config.expert_threshold, gates)

    return read


def with_experts(cases: Sequence[PageCase], read: ReadExperts) -> list[PageCase]:
    """The cases with what the experts make of each."""
    return [replace(case, experts=read(_picture(case.image), case.generated, case.indication)) for case in cases]


def _picture(image: Image.Image | np.ndarray) -> Image.Image:
    return image if isinstance(image, Image.Image) else Image.fromarray(image)


# --- one case --------------------------------------------------------------------------------------------------------


def gate_scale(cases: Sequence[PageCase]) -> tuple[float, float] | None:
    """The gate strengths that the ends of the colour scale stand for, one scale for all cases; None without gates."""
    maps = [case.experts.gates.gates for case in cases if case.experts is not None and case.experts.gates is not None]
    if not maps:
        return None
    low, high = min(float(gates.min()) for gates in maps), max(float(gates.max()) for gates in maps)
    missing = max(0.0, _SMALLEST_SPAN - (high - low)) / 2
    return low - missing, high + missing


def lay_out_experts(case: PageCase, scale: tuple[float, float] | None) -> LaidOutExperts | None:
    """Bars and gate strip of a case; None for a model without experts.

    Args:
        case: its labels are the reference, else the rule labeller's on its reference report.
        scale: see `gate_scale`.
    """
    experts = case.experts
    if experts is None:
        return None
    labels = _reference_labels(case)
    rows = []
    for name, probability in experts.probabilities.items():
        if not 0 <= probability <= 1:
            raise ValueError(f"The probability of {name!r} in case {case.study_id!r} is {probability}, not in 0 to 1.")
        state = labels.get(name)
        predicted = probability >= experts.threshold
        rows.append(
            ExpertRow(
                name=name.replace("mediastinum", "\u00admediastinum"),  # may break there on a phone
                text=f"{probability:.2f}",
                width=round(100 * probability, 1),
                predicted=predicted,
                reference=_UNLABELLED if state is None else str(LabelState(state)).replace("_", " "),
                verdict=_verdict(predicted, state),
            )
        )
    strip = _strip(experts.gates, scale) if experts.gates is not None and scale is not None else None
    return LaidOutExperts(tuple(rows), round(100 * experts.threshold, 1), f"{experts.threshold:g}", strip)


def _reference_labels(case: PageCase) -> Mapping[str, str | None]:
    if case.labels is not None:
        return case.labels
    if case.reference is None or not case.reference.strip():
        return {}
    from ..text.rules import label_report

    return label_report(case.reference)


def _verdict(predicted: bool, state: str | None) -> str:
    """In the words of the page's legend."""
    if predicted:
        return {"positive": "right", "negative": "wrong", "not_mentioned": "invented"}.get(state or "", "")
    return "missed" if state == "positive" else ""


def _strip(gates: ReportGates, scale: tuple[float, float]) -> GateStrip:
    low, high = scale
    shares = np.clip((gates.gates - low) / (high - low), 0, 1)
    layers, tokens = shares.shape
    row = min(max(_STRIP_HEIGHT / layers, _ROWS[0]), _ROWS[1])
    means = gates.word_gates.mean(axis=0)
    words = []
    for at, (start, end) in enumerate(gates.words):
        inside = [index for index, (_, last) in enumerate(gates.tokens) if start < last <= end]
        column = gates.word_gates[:, at]
        whole = gates.report[start:end]
        words.append(
            WordColumn(
                text=whole if len(whole) <= _LONGEST_WORD else f"{whole[: _LONGEST_WORD - 1]}…",
                whole=whole,
                left=_COLUMN * inside[0],
                width=_COLUMN * (inside[-1] - inside[0] + 1),
                middle=_COLUMN * (inside[0] + inside[-1] + 1) / 2,
                mean=f"{means[at]:.3f}",
                share=round(100 * float(np.clip((means[at] - low) / (high - low), 0, 1)), 1),
                layers=f"{column.min():.3f} to {column.max():.3f}",
                strongest=int(column.argmax()) + 1,
            )
        )
    widest = ", ".join(f"{word} {value:.3f}" for word, value in gates.strongest_words(_TOP_WORDS))
    profile = gates.layer_means
    return GateStrip(
        url=_png(shares),
        width=_COLUMN * tokens,
        height=round(row * layers, 1),
        depth=round(14 + _LETTER * max(len(word.text) for word in words), 1),
        layers=layers,
        words=tuple(words),
        widest=widest,
        summary=f"Gate strength of {layers} layers over {tokens} tokens, {gates.gates.min():.3f} to "
        f"{gates.gates.max():.3f}; layer means {profile.min():.3f} to {profile.max():.3f}.",
    )


def _png(shares: np.ndarray) -> str:
    """A data address of a picture with one pixel a cell, of shares in [0, 1]."""
    position = shares * (len(_RAMP) - 1)
    below = np.floor(position).astype(int).clip(0, len(_RAMP) - 2)
    weight = (position - below)[..., None]
    colours = (_RAMP[below] * (1 - weight) + _RAMP[below + 1] * weight).round().astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(colours, "RGB").save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# --- all studies -----------------------------------------------------------------------------------------------------


def lay_out_results(results: Any | None) -> list[dict[str, Any]]:
    """Tiles and table of each result of experts.

    Args:
        results: an `ExpertResult` (or its `to_dict()`), or a mapping of split or system name to one.
    """
    if not results:
        return []
    plain = _plain(results)
    named = {"": plain} if "observations" in plain else {name: _plain(entry) for name, entry in plain.items()}
    return [_block(name, result) for name, result in named.items()]


def _plain(result: Any) -> dict[str, Any]:
    return dict(result.to_dict() if hasattr(result, "to_dict") else result)


def _block(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    protocol = dict(result.get("protocol") or {})
    bootstrap = protocol.get("bootstrap") or {}
    share = f"{100 * bootstrap['confidence']:g} % interval " if "confidence" in bootstrap else ""
    titles = {"macro_auroc": "Macro AUROC", "micro_auroc": "Micro AUROC", "accuracy": "Accuracy"}
    there = len(result["observations"]) - len(result["absent"])
    remarks = {
        "macro_auroc": f"mean over {there} of {len(result['observations'])} observations",
        "micro_auroc": "all known labels pooled",
        "accuracy": f"{result['majority_accuracy']:.3f} by always answering each observation's commoner state",
    }
    return {
        "name": name,
        "count": result["n"],
        "tiles": [
            {
                "label": title,
                "value": (cell := score_cell(result["scores"][key]))["text"],
                "interval": f"{share}{cell['interval']}" if cell["interval"] else "",
                "remark": remarks[key],
            }
            for key, title in titles.items()
        ],
        "rows": [
            {
                "name": expert.replace("mediastinum", "\u00admediastinum"),
                "positives": f"{entry['positives']:,}",
                "negatives": f"{entry['negatives']:,}",
                "auroc": score_cell(entry["auroc"]),
                "accuracy": score_cell(entry["accuracy"]),
            }
            for expert, entry in result["observations"].items()
        ],
        "absent": [f"{expert}: {reason}" for expert, reason in result["absent"].items()],
        "protocol": protocol,
    }


def gate_profile(cases: Sequence[PageCase]) -> LineChart | None:
    """Mean gate per layer over the reports of the cases; None without gates or with a single layer."""
    profiles = [
        case.experts.gates.layer_means for case in cases if case.experts is not None and case.experts.gates is not None
    ]
    if not profiles or len(profiles[0]) < 2:
        return None
    mean = np.mean(profiles, axis=0)
    what = "the shown report" if len(profiles) == 1 else f"the {len(profiles)} shown reports"
    points = [(float(layer), float(value)) for layer, value in enumerate(mean, start=1)]
    return line_chart(f"Gate strength per decoder layer, mean over {what}", {"gate": points}, x_label="layer")
