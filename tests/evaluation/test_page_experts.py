"""Pathology experts on the page: bars against labels, gate strips, the table of scores, and pages without experts."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rrg_hf.data.phantom import phantom_dataset
from rrg_hf.evaluation import score_experts
from rrg_hf.evaluation.gates import gates_of_tokens
from rrg_hf.evaluation.page_cases import PageCase
from rrg_hf.evaluation.page_experts import (
    CaseExperts,
    gate_profile,
    gate_scale,
    lay_out_experts,
    lay_out_results,
    read_experts_with,
    with_experts,
)
from rrg_hf.evaluation.page_studies import study_cases
from rrg_hf.observations import OBSERVATIONS
from tests.evaluation.test_page import EVIL, image, page
from tests.lead_model import make_lead_model

NAMES = ("Edema", "Fracture", "Pneumonia", "Pneumothorax", "Atelectasis", "Support Devices")
STATES = ("positive", "negative", "not_mentioned", "uncertain", "positive", None)
REPORT = "There is edema. No fracture."


def gates(report: str = REPORT, layers: int = 4, low: float = 0.2, high: float = 0.8) -> Any:
    tokens = [match.span() for match in re.finditer(r"\S+", report)]
    values = np.linspace(low, high, layers * len(tokens)).reshape(layers, len(tokens))
    return gates_of_tokens(report, tokens, values)


def case(probability: float = 0.7, **changes: Any) -> PageCase:
    experts = CaseExperts(dict.fromkeys(NAMES, probability), 0.5, gates())
    given = {"labels": dict(zip(NAMES, STATES, strict=True)), "experts": experts, **changes}
    return PageCase("s1", image(), REPORT, "There is edema.", **given)


def pixels(url: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))


# --- one case --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probability", "verdicts"),
    [
        (0.7, ["right", "wrong", "invented", "", "right", ""]),
        (0.5, ["right", "wrong", "invented", "", "right", ""]),
        (0.49, ["missed", "", "", "", "missed", ""]),
    ],
)
def test_a_bar_says_what_the_expert_and_the_reference_say(probability: float, verdicts: list[str]) -> None:
    laid = lay_out_experts(case(probability), (0.0, 1.0))
    assert laid is not None and [row.verdict for row in laid.rows] == verdicts
    assert [row.reference for row in laid.rows] == [
        "positive", "negative", "not mentioned", "uncertain", "positive", "no label"
    ]  # fmt: skip
    assert {row.width for row in laid.rows} == {100 * probability} and laid.threshold == 50
    assert {row.predicted for row in laid.rows} == {probability >= 0.5}


def test_without_known_labels_the_rule_labeller_reads_the_reference() -> None:
    laid = lay_out_experts(case(labels=None), (0.0, 1.0))
    assert laid is not None
    assert [row.reference for row in laid.rows] == ["positive"] + ["not mentioned"] * 5
    unread = lay_out_experts(PageCase("s1", image(), REPORT, None, experts=case().experts), (0.0, 1.0))
    assert unread is not None and {row.reference for row in unread.rows} == {"no label"}


def test_a_probability_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'Edema' in case 's1' is 1\.2"):
        lay_out_experts(case(1.2), (0.0, 1.0))


def test_the_strip_has_a_pixel_a_cell_and_a_column_a_token() -> None:
    laid = lay_out_experts(case(), (0.2, 0.8))
    assert laid is not None and laid.strip is not None
    strip = laid.strip
    picture = pixels(strip.url)
    assert picture.shape == (4, 5, 3)
    assert picture[0, 0].tolist() == [68, 1, 84] and picture[-1, -1].tolist() == [253, 231, 37]
    assert len({tuple(cell) for row in picture.tolist() for cell in row}) == 20, "every cell has its own strength"
    assert [word.whole for word in strip.words] == REPORT.split()
    starts = [word.left for word in strip.words]
    assert starts == [index * strip.words[0].width for index in range(5)] and strip.width == 5 * strip.words[0].width
    assert [word.strongest for word in strip.words] == [4] * 5
    assert strip.words[0].mean == f"{gates().gates[:, 0].mean():.3f}"
    assert strip.widest.startswith("fracture. ")


def test_long_words_are_shortened_in_the_strip_only() -> None:
    word = "electrocardiographically-confirmed"
    experts = CaseExperts({}, 0.5, gates(f"{word} edema."))
    laid = lay_out_experts(case(experts=experts), (0.0, 1.0))
    assert laid is not None and laid.strip is not None
    assert laid.strip.words[0].whole == word and laid.strip.words[0].text == f"{word[:19]}…"


def test_one_colour_scale_for_all_cases_and_no_glow_from_noise() -> None:
    wide = CaseExperts({}, 0.5, gates(low=0.1, high=0.3))
    cases = [case(), case(experts=wide), case(experts=None)]
    assert gate_scale(cases) == pytest.approx((0.1, 0.8))
    low, high = gate_scale([case(experts=CaseExperts({}, 0.5, gates(low=0.5, high=0.501)))]) or (0, 0)
    assert high - low == pytest.approx(0.02) and (low + high) / 2 == pytest.approx(0.5005)
    assert gate_scale([case(experts=None)]) is None


def test_the_profile_is_the_mean_over_reports() -> None:
    chart = gate_profile([case(), case(experts=CaseExperts({}, 0.5, gates(low=0.0, high=0.4)))])
    assert chart is not None and "the 2 shown reports" in chart.title and chart.x_label == "layer"
    expected = np.mean([gates().layer_means, gates(low=0.0, high=0.4).layer_means], axis=0)
    assert f"from {expected[0]:.3g} to {expected[-1]:.3g}" in chart.summary
    assert gate_profile([case(experts=CaseExperts({}, 0.5, gates(layers=1)))]) is None
    assert gate_profile([case(experts=CaseExperts({}, 0.5))]) is None


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scored() -> Any:
    rng = np.random.default_rng(0)
    targets = (rng.random((50, 6)) < 0.4).astype(float)
    targets[:, 1] = 0
    result = score_experts(np.clip(0.3 * targets + 0.6 * rng.random((50, 6)), 0, 1), targets, NAMES, bootstrap=40)
    result.protocol["phantom"] = True
    return result


def test_the_page_shows_scores_bars_and_gates_and_needs_nothing_else(tmp_path: Path, scored: Any) -> None:
    html, outline = page(tmp_path, cases=[case(), case()], experts={"test": scored})
    assert "http" not in html.replace("http-equiv", "") and "url(" not in html and "@import" not in html
    assert not outline.all("script")
    assert all((entry.get("href") or "").startswith("data:image/png;base64,") for entry in outline.all("image"))
    assert len(outline.all("image")) == 2
    anchors = {attributes["id"] for _, attributes in outline.tags if attributes.get("id")}
    assert "experts" in anchors and {(entry["href"] or "")[1:] for entry in outline.all("a")} <= anchors
    macro = scored.scores["macro_auroc"]
    assert f"Macro AUROC {macro['value']:.3f} 95 % interval {macro['low']:.3f}–{macro['high']:.3f}" in outline.text
    assert "mean over 5 of 6 observations" in outline.text
    assert "not in the macro mean: Fracture: all 50 known labels are negative." in outline.text
    assert "Phantom data" in outline.text, "the experts' protocol says so"
    assert re.search(r"Edema 0\.70 reference: positive right", outline.text)
    assert re.search(r"Pneumothorax 0\.70 reference: uncertain Atelectasis", outline.text)
    assert "Gates over the generated report" in outline.text and "fracture.: mean" in outline.text
    assert outline.text.count("Widest in layer") == 2


def test_a_page_without_experts_says_nothing_of_them(tmp_path: Path) -> None:
    html, outline = page(tmp_path, cases=[case(experts=None)])
    assert "xpert" not in html and "gate" not in html and not outline.all("image")
    only_bars, outline = page(tmp_path, cases=[case(experts=CaseExperts({"Edema": 0.3}, 0.5))])
    assert "Expert probabilities" in only_bars and "Gates over" not in only_bars and 'id="experts"' not in only_bars


def test_experts_alone_make_a_page(tmp_path: Path, scored: Any) -> None:
    _, outline = page(tmp_path, experts=scored.to_dict())
    assert "Pathology experts" in outline.text and "Cases" not in outline.text.split("Pathology experts")[1]


def test_results_without_intervals(scored: Any) -> None:
    values = scored.to_dict()
    values["scores"] = {name: {**score, "low": None, "high": None} for name, score in values["scores"].items()}
    values["protocol"] = {}
    (block,) = lay_out_results(values)
    assert [tile["interval"] for tile in block["tiles"]] == [""] * 3 and block["name"] == ""
    assert block["rows"][1]["auroc"]["text"] == "–", "an observation with one state"
    assert lay_out_results(None) == []


def test_hostile_names_and_words_are_inert(tmp_path: Path) -> None:
    experts = CaseExperts({EVIL: 0.7}, 0.5, gates(EVIL))
    html, outline = page(tmp_path, cases=[case(experts=experts, labels={"Edema": "positive"})])
    assert "<script" not in html and "<b>pleural" not in html and "<img src=x" not in html
    assert not [attributes for _, attributes in outline.tags if any(name.startswith("on") for name in attributes)]


# --- by a model ------------------------------------------------------------------------------------------------------


def test_a_model_fills_the_cases(tmp_path: Path) -> None:
    model, processor = make_lead_model(tmp_path / "lead", expert_threshold=0.4)
    rows = phantom_dataset(3, split="test", size=64)
    cases = study_cases(rows, dict.fromkeys(rows["study_id"], REPORT), count=2)
    filled = with_experts(cases, read_experts_with(model, processor))
    assert [entry.study_id for entry in filled] == [entry.study_id for entry in cases]
    for entry in filled:
        assert entry.experts is not None and tuple(entry.experts.probabilities) == OBSERVATIONS
        assert entry.experts.threshold == 0.4 and entry.experts.gates is not None
        assert entry.experts.gates.report == REPORT and len(entry.experts.gates.gates) == 3
    first, second = (entry.experts.gates.gates for entry in filled if entry.experts and entry.experts.gates)
    assert not np.allclose(first, second), "the gates depend on the image"
    html, _ = page(tmp_path, cases=filled)
    assert html.count("Expert probabilities") == 2


def test_prompted_models_get_their_prediction_in_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = make_lead_model(tmp_path / "lead", expert_prompting=True, expert_threshold=0.3)
    seen: list[Any] = []
    monkeypatch.setattr("rrg_hf.evaluation.gates.report_gates", lambda *_, **settings: seen.append(settings))
    found = read_experts_with(model, processor)(Image.fromarray(image()), REPORT, "Cough.")
    expected = [name for name, value in found.probabilities.items() if value >= 0.3 and name != "No Finding"]
    assert seen == [{"indication": "Cough.", "observations": expected}] and expected
