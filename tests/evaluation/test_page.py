"""The evaluation page: self-contained, inert, readable without colour, and true to its inputs."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rrg_hf.errors import DataError
from rrg_hf.evaluation import EvaluationResult, evaluate_reports, evidence_test
from rrg_hf.evaluation.heatmap import SentenceMaps
from rrg_hf.evaluation.page import PHANTOM_NOTE, SCOPE, PageCase, PageCurve, curves_from_log, metric_name, write_page
from rrg_hf.text.sentences import split_sentences

EVIL = "<script>alert('x')</script> There is a <b>pleural effusion</b>. \"><img src=x onerror=alert(1)>"
VOID = {"meta", "img", "input", "path", "circle", "line", "br"}


class Outline(HTMLParser):
    """Tags, attributes and visible text of a page; fails on tags that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def image(seed: int = 0, size: tuple[int, int] = (90, 80)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def maps(text: str, method: str = "occlusion", tops: tuple[float, ...] = (0.01, 3.0, 1.0)) -> SentenceMaps:
    spans = tuple(split_sentences(text))
    heat = np.zeros((len(spans), 90, 80), np.float32)
    for at, top in zip(range(len(spans)), tops, strict=False):
        heat[at, :40, :40] = top
    return SentenceMaps(spans, heat, method)


GENERATED = "The heart is enlarged. There is a left pleural effusion. No pneumothorax. The bones are intact."
REFERENCE = "Cardiomegaly. There is a right pleural effusion. There is pulmonary edema."


def page(tmp_path: Path, **kwargs: Any) -> tuple[str, Outline]:
    kwargs.setdefault("title", "A test")
    html = write_page(tmp_path / "page.html", **kwargs).read_text(encoding="utf-8")
    return html, Outline(html)


@pytest.fixture(scope="module")
def result() -> EvaluationResult:
    references = {
        f"s{index}": REFERENCE if index % 2 else "No pleural effusion. Heart size is normal." for index in range(8)
    }
    predictions = dict.fromkeys(references, GENERATED)
    return evaluate_reports(predictions, references, bootstrap=40, sources={"phantom"})


def test_a_full_page_needs_nothing_but_itself(tmp_path: Path, result: EvaluationResult) -> None:
    case = PageCase("s1", image(), GENERATED, REFERENCE, maps=[maps(GENERATED), maps(GENERATED, "attention")])
    html, outline = page(
        tmp_path,
        cases=[case, PageCase("s2", image(1, (500, 300)), GENERATED, REFERENCE)],
        results={"PALM": {"test": result, "test_shifted": result}, "prior": {"test": result}},
        curves=[PageCurve("loss", {"train": [(0, 1.0), (9, 0.1)]})],
        notes=["A note."],
    )
    sources = [attributes.get("src") or "" for attributes in outline.all("img")]
    assert len(sources) == 2 + 2 + 2 * 4  # thumbnails, pictures, one map a sentence and method
    assert all(source.startswith("data:image/") for source in sources)
    assert all((entry.get("href") or "").startswith("#") for entry in outline.all("a"))
    assert "http" not in html.replace("http-equiv", "") and "url(" not in html and "@import" not in html
    assert not outline.all("script") and not outline.all("link") and not outline.all("iframe")
    anchors = {attributes["id"] for _, attributes in outline.tags if attributes.get("id")}
    assert {(entry["href"] or "")[1:] for entry in outline.all("a")} <= anchors


def test_hostile_text_is_inert(tmp_path: Path, result: EvaluationResult) -> None:
    case = PageCase(EVIL, image(), EVIL, EVIL, indication=EVIL, maps=[maps(EVIL)], split=EVIL, source=EVIL, note=EVIL)
    html, outline = page(
        tmp_path,
        title=EVIL,
        cases=[case, case],
        results={EVIL: {EVIL: {**result.to_dict(), "protocol": {EVIL: EVIL}}}},
        curves=[PageCurve(EVIL, {EVIL: [(0, 1.0), (1, 2.0)]}, x_label=EVIL)],
        notes=[EVIL],
        protocol={EVIL: {EVIL: EVIL}},
    )
    assert "<script" not in html and "<b>pleural" not in html and "<img src=x" not in html
    assert not [attributes for _, attributes in outline.tags if any(name.startswith("on") for name in attributes)]
    policy = next(entry["content"] for entry in outline.all("meta") if entry.get("http-equiv"))
    assert policy is not None and "default-src 'none'" in policy and "script-src" not in policy
    assert outline.text.count("<script>alert('x')</script>") > 8


def test_verdicts_are_words_and_icons_not_colour_alone(tmp_path: Path) -> None:
    _, outline = page(tmp_path, cases=[PageCase("s1", image(), GENERATED, REFERENCE)])
    article = outline.text.split("Generated report")[1]
    generated, reference = article.split("Reference report")
    assert re.findall(r"(right|wrong|invented|neutral) (The heart|There is|No pneumo|The bones)", generated) == [
        ("right", "The heart"), ("wrong", "There is"), ("right", "No pneumo"), ("neutral", "The bones")
    ]  # fmt: skip
    assert "wrong side, the reference says right" in generated
    assert re.findall(r"(covered|missed|neutral) (Cardiomegaly|There is a right|There is pulm)", reference) == [
        ("covered", "Cardiomegaly"), ("missed", "There is a right"), ("missed", "There is pulm")
    ]  # fmt: skip
    assert "Edema: not stated by the generated report" in reference
    marks = [entry for entry in outline.all("span") if (entry.get("class") or "").startswith("mark ")]
    assert len(marks) <= len(outline.all("svg"))


def test_heat_maps_belong_to_their_sentences_and_work_without_script(tmp_path: Path) -> None:
    case = PageCase("s1", image(), GENERATED, REFERENCE, maps=[maps(GENERATED)])
    html, outline = page(tmp_path, cases=[case])
    radios = [entry for entry in outline.all("input") if entry.get("name") == "case-1"]
    assert [entry.get("class") for entry in radios] == [None, "pick-0", "pick-1", "pick-2", "pick-3"]
    assert [entry.get("class") for entry in radios if "checked" in entry] == ["pick-1"]  # the strongest
    for at in range(4):
        assert f".case:has(.pick-{at}:checked) .heat-{at} {{ opacity: 1; }}" in html
        assert f'class="heat heat-{at} occlusion"' in html
    assert "makes this sentence 20 times less likely" in outline.text  # exp(3)
    assert "makes this sentence 2.7 times less likely" in outline.text
    assert "leaves this sentence as likely" in outline.text
    source = re.search(r'class="heat heat-1 occlusion" src="data:image/png;base64,([^"]+)"', html)
    assert source is not None
    alpha = np.asarray(Image.open(io.BytesIO(base64.b64decode(source[1]))))[..., 3]
    assert alpha[:30, :30].min() > 150 and alpha[50:, 50:].max() == 0


def test_weak_evidence_does_not_glow(tmp_path: Path) -> None:
    case = PageCase("s1", image(), "No pneumothorax.", None, maps=[maps("No pneumothorax.", tops=(0.02,))])
    html, _ = page(tmp_path, cases=[case])
    source = re.search(r'class="heat heat-0 occlusion" src="data:image/png;base64,([^"]+)"', html)
    assert source is not None
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(source[1]))))[..., 3].max() < 30


def test_a_case_without_reference_is_not_judged(tmp_path: Path) -> None:
    _, outline = page(tmp_path, cases=[PageCase("real", image(), GENERATED, note="Image: NIH Clinical Center")])
    assert "Reference report" not in outline.text and "Image: NIH Clinical Center" in outline.text
    assert "There is a left pleural effusion." in outline.text
    assert not re.search(r"wrong There is a left", outline.text)


def test_empty_reports_are_said(tmp_path: Path) -> None:
    _, outline = page(tmp_path, cases=[PageCase("s1", image(), "", "")])
    assert "The model wrote nothing." in outline.text and "The reference is empty." in outline.text


def test_scores_intervals_support_and_protocol(tmp_path: Path, result: EvaluationResult) -> None:
    _, outline = page(tmp_path, results={"PALM": {"test": result, "test_shifted": result}, "prior": {"test": result}})
    score = result.scores["rules_micro_f1"]
    assert f"{score['value']:.3f} PALM · 95 % interval {score['low']:.3f}–{score['high']:.3f}" in outline.text
    for name in ("bleu_1", "bleu_4", "rouge_l", "cider"):
        entry = result.scores[name]
        assert f"{metric_name(name)} {entry['value']:.3f} {entry['low']:.3f}–{entry['high']:.3f}" in outline.text
    row = result.observations["Pleural Effusion"]
    assert (
        f"Pleural Effusion {row['support']} {row['precision']['value']:.2f} {row['recall']['value']:.2f}"
        in outline.text
    )
    assert result.observations["Fracture"]["support"] == 0 and "Fracture 0 – – –" in outline.text
    assert "Protocol of these numbers" in outline.text
    for text in ("section findings", "policy uncertain_as_positive", "bootstrap: resamples 40"):
        assert text in outline.text
    assert "test 8 studies" in outline.text and "test_shifted 8 studies" in outline.text
    assert "All averages of the label scores" in outline.text


def test_a_protocol_that_differs_is_shown_for_each_system(tmp_path: Path) -> None:
    plain = {"scores": {"bleu_4": {"value": 0.5, "low": None, "high": None}}, "n": 3}
    results = {
        "one": {**plain, "protocol": {"section": "findings", "beams": 1}},
        "two": {**plain, "protocol": {"section": "findings", "beams": 4}},
    }
    _, outline = page(tmp_path, results=results)
    assert "section findings one only beams 1 two only beams 4" in outline.text


def test_phantom_is_announced_only_where_it_is_true(tmp_path: Path, result: EvaluationResult) -> None:
    plain = {"scores": {"bleu_4": {"value": 0.5}}}
    for kwargs, phantom in (
        ({"results": {"PALM": result}}, True),
        ({"results": {"PALM": plain}}, False),
        ({"cases": [PageCase("s", image(), "x.", source="phantom")]}, True),
        ({"cases": [PageCase("s", image(), "x.", source="iu_xray")]}, False),
        ({"results": {"PALM": plain}, "phantom": True}, True),
    ):
        _, outline = page(tmp_path, **kwargs)
        assert (PHANTOM_NOTE in outline.text) == phantom
        assert outline.text.count(SCOPE) == 2


def test_evidence_shows_drops_and_what_was_covered(tmp_path: Path) -> None:
    labels = dict.fromkeys(["Cardiomegaly"], "positive")
    rows = [
        {
            "study_id": f"s{index}",
            "images": [image(index, (60, 60))],
            "views": ["frontal"],
            "findings": REFERENCE,
            "labels": labels,
            "boxes": [],
            "masks": [],
            "source": "phantom",
        }
        for index in range(6)
    ]
    evidence = evidence_test(lambda images, _: [GENERATED] * len(images), rows, bootstrap=20)
    _, outline = page(tmp_path, evidence=evidence)
    entry = evidence.regions["left lung"]["drop"]
    assert f"left lung {100 * evidence.regions['left lung']['area_share']:.0f} % of the image" in outline.text
    assert f"{entry['value']:.3f} {entry['low']:.3f} to {entry['high']:.3f}" in outline.text
    assert "Regions are fixed boxes, because the data set has no masks" in outline.text
    assert "Drop of Rules micro F1 when a region is covered" in outline.text
    assert "Covering anatomy costs as much as covering background (95 % interval" in outline.text
    bars = [entry for entry in outline.all("div") if (entry.get("class") or "").startswith("bar ")]
    assert [entry["class"] for entry in bars] == ["bar anatomy"] * 3 + ["bar background"] * 2
    beyond = {
        "background": {"value": 0.2, "low": 0.1, "high": 0.3},
        "other": {"value": -0.1, "low": None, "high": None},
    }
    text = page(tmp_path, evidence={**evidence.to_dict(), "drop_beyond_background": beyond})[1].text
    assert "costs 0.200 more than covering background (95 % interval of the difference 0.100 to 0.300)." in text
    assert "costs 0.100 less than covering other." in text
    by_split = page(tmp_path, evidence={"test": evidence, "test_shifted": evidence.to_dict()})[1]
    assert by_split.text.count("Drop of Rules micro F1") == 2 and "test_shifted" in by_split.text


def test_curves_from_a_trainer_log(tmp_path: Path) -> None:
    log = [
        {"loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 0.5, "step": 5},
        {"eval_loss": 1.5, "eval_rules_micro_f1": 0.2, "eval_runtime": 3.0, "step": 10, "epoch": 1},
        {"loss": 1.0, "epoch": 1.0, "step": 10},
        {"eval_loss": 1.2, "eval_rules_micro_f1": 0.6, "eval_runtime": 3.0, "step": 20, "epoch": 2},
        {"train_runtime": 9.0, "train_loss": 1.4, "step": 20, "total_flos": 1.0},
    ]
    curves = curves_from_log(log, stage="generate")
    assert curves == [
        PageCurve("generate: loss", {"train": [(5, 2.0), (10, 1.0)], "validation": [(10, 1.5), (20, 1.2)]}),
        PageCurve("generate: rules micro F1", {"validation": [(10, 0.2), (20, 0.6)]}),
    ]
    assert [curve.title for curve in curves_from_log(log, names=["eval_rules_micro_f1"])] == ["rules micro F1"]
    _, outline = page(tmp_path, curves=curves)
    assert "generate: loss over step: train from 2 to 1; validation from 1.5 to 1.2." in [
        entry.get("aria-label") for entry in outline.all("svg")
    ]


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "deep" / "page.html"
    write_page(target, title="First", notes=["kept"], cases=[PageCase("s", image(), "x.")])
    before = target.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(DataError, match="could not be written"):
        write_page(target, title="Second", cases=[PageCase("s", image(), "x.")])
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]


def test_structure_for_assistive_technology(tmp_path: Path, result: EvaluationResult) -> None:
    case = PageCase("s1", image(), GENERATED, REFERENCE, maps=[maps(GENERATED), maps(GENERATED, "attention")])
    html, outline = page(tmp_path, cases=[case], results={"PALM": result}, curves=[PageCurve("l", {"a": [(0, 1.0)]})])
    assert html.startswith("<!doctype html>") and outline.all("html")[0]["lang"] == "en"
    assert any(entry.get("name") == "viewport" for entry in outline.all("meta"))
    assert len(outline.all("h1")) == len(outline.all("main")) == 1
    assert all("alt" in entry for entry in outline.all("img"))
    assert all(entry.get("scope") for entry in outline.all("th"))
    assert all(entry.get("aria-hidden") or entry.get("role") == "img" for entry in outline.all("svg"))
    ids = [attributes["id"] for _, attributes in outline.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in html and "prefers-reduced-motion" in html


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({}, "all of them are empty"),
        ({"results": {"PALM": {"test": {"n": 3}}}}, "'PALM' on 'test' has no 'scores'"),
        ({"cases": [PageCase("s", np.zeros((3, 4, 5)), "x.")]}, "greyscale"),
    ],
)
def test_nothing_to_show(tmp_path: Path, kwargs: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        write_page(tmp_path / "page.html", title="A test", **kwargs)
    assert not (tmp_path / "page.html").exists()


def test_images_of_every_depth_are_shown(tmp_path: Path) -> None:
    deep = image().astype(np.uint16) * 200
    pictures = [
        image(),
        deep,
        Image.fromarray(image()),
        Image.fromarray(image()).convert("RGB"),
        image(0, (900, 1500)),
    ]
    html, _ = page(tmp_path, cases=[PageCase(str(at), picture, "x.") for at, picture in enumerate(pictures)])
    shown = [
        Image.open(io.BytesIO(base64.b64decode(data)))
        for data in re.findall(r'<div class="stage"><img src="data:image/\w+;base64,([^"]+)"', html)
    ]
    assert [picture.size for picture in shown] == [(80, 90)] * 4 + [(720, 432)]
    assert all(np.array_equal(np.asarray(picture), image()) for picture in (shown[0], shown[2], shown[3]))
    assert np.asarray(shown[1]).max() == 255
