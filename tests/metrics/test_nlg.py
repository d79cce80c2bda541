"""Text scores against pycocoevalcap itself, a slow reference written here, and published cases."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.metrics import nlg
from rrg_hf.metrics.nlg import bleu_statistics, cider_per_study, nlg_scores, nlg_statistics, rouge_l_per_study
from rrg_hf.metrics.tokenization import tokenize

REFERENCES = [
    "the lungs are clear . no effusion .",
    "mild cardiomegaly with small bilateral effusions .",
    "no acute process .",
    "the heart is normal in size and the lungs are clear .",
]
REPORTS = [
    "the lungs are clear . no pneumothorax .",
    "mild cardiomegaly .",
    "no acute process .",
    "heart size is normal . the lungs are clear . the lungs are clear .",
]


def split(texts: list[str]) -> list[list[str]]:
    return [text.split() for text in texts]


def ngrams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def slow_bleu(reports: list[list[str]], references: list[list[str]], order: int) -> float:
    """Corpus BLEU from its definition, without smoothing."""
    log_precision = 0.0
    for n in range(1, order + 1):
        matched = sum(sum((ngrams(a, n) & ngrams(b, n)).values()) for a, b in zip(reports, references, strict=True))
        log_precision += math.log(matched / sum(max(0, len(a) - n + 1) for a in reports)) / order
    length, reference_length = sum(map(len, reports)), sum(map(len, references))
    return math.exp(log_precision + min(0.0, 1 - reference_length / length))


def slow_rouge_l(report: list[str], reference: list[str]) -> float:
    table = [[0] * (len(reference) + 1) for _ in range(len(report) + 1)]
    for i, a in enumerate(report, 1):
        for j, b in enumerate(reference, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if a == b else max(table[i - 1][j], table[i][j - 1])
    precision, recall = table[-1][-1] / len(report), table[-1][-1] / len(reference)
    return 0.0 if table[-1][-1] == 0 else (1 + 1.44) * precision * recall / (recall + 1.44 * precision)


def slow_cider(reports: list[list[str]], references: list[list[str]]) -> list[float]:
    frequency: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        for n in range(1, 5):
            frequency.update(set(ngrams(reference, n)))
    total = math.log(len(references))
    scores = []
    for report, reference in zip(reports, references, strict=True):
        by_order = []
        for n in range(1, 5):
            weigh = [
                {gram: count * (total - math.log(max(1, frequency[gram]))) for gram, count in ngrams(side, n).items()}
                for side in (report, reference)
            ]
            norms = [math.sqrt(sum(value**2 for value in side.values())) for side in weigh]
            product = sum(
                min(value, weigh[1].get(gram, 0)) * weigh[1].get(gram, 0) for gram, value in weigh[0].items()
            )
            cosine = product / (norms[0] * norms[1]) if norms[0] and norms[1] else 0.0
            bigrams = max(0, len(report) - 1) - max(0, len(reference) - 1)
            by_order.append(cosine * math.exp(-(bigrams**2) / 72))
        scores.append(10 * sum(by_order) / 4)
    return scores


def test_equals_the_definitions() -> None:
    reports, references = split(REPORTS), split(REFERENCES)
    scores = nlg_scores(REPORTS, REFERENCES, tokenizer="whitespace")
    for order in (1, 2, 3, 4):
        assert scores[f"bleu_{order}"] == pytest.approx(slow_bleu(reports, references, order), abs=1e-8)
    rouge = [slow_rouge_l(a, b) for a, b in zip(reports, references, strict=True)]
    assert np.allclose(rouge_l_per_study(reports, references), rouge, atol=1e-12)
    cider = slow_cider(reports, references)
    assert np.allclose(cider_per_study(reports, references), cider, atol=1e-10)
    assert scores["rouge_l"] == pytest.approx(np.mean(rouge))
    assert scores["cider"] == pytest.approx(np.mean(cider))


def test_bleu_equals_pycocoevalcap_to_the_last_digit() -> None:
    from pycocoevalcap.bleu.bleu import Bleu

    ids = range(len(REPORTS))
    corpus, per_study = Bleu(4).compute_score(
        {i: [REFERENCES[i]] for i in ids}, {i: [REPORTS[i]] for i in ids}, verbose=0
    )
    group = bleu_statistics(split(REPORTS), split(REFERENCES))
    assert np.allclose(list(group.corpus().values()), corpus, rtol=0, atol=1e-15)
    assert np.allclose(np.stack(list(group.per_study().values())), per_study, rtol=0, atol=1e-15)


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    nlg_scores(REPORTS, REFERENCES)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("report", "reference"), [("", "Clear lungs."), ("Clear lungs.", "\x0c"), ("", "")])
def test_blank_side_scores_zero_and_leaves_the_rest_alone(report: str, reference: str) -> None:
    """huggingface/evaluate#601 and #764: no ZeroDivisionError; two blanks are no perfect match."""
    reports, references = tokenize([*REPORTS, report]), tokenize([*REFERENCES, reference])
    groups, _ = nlg_statistics(reports, references)
    alone, _ = nlg_statistics(reports[:-1], references[:-1])
    for with_blank, without in zip(groups, alone, strict=True):
        for name, values in with_blank.per_study().items():
            assert values[-1] == 0.0
            assert len(values) == len(references)
            if name != "cider":  # its document frequencies are the corpus's
                assert np.array_equal(values[:-1], without.per_study()[name])
    only, _ = nlg_statistics(tokenize([report]), tokenize([reference]))
    assert all(value == 0.0 for group in only for value in group.corpus().values())


def test_all_references_blank() -> None:
    scores = nlg_scores(["Clear lungs.", "No effusion."], ["", "."])
    assert set(scores.values()) == {0.0}


@pytest.mark.parametrize("degenerate", [".", "...", ". . ."])
@pytest.mark.parametrize("tokenizer", ["default", "whitespace"])
def test_report_of_full_stops_is_scored_not_dropped(degenerate: str, tokenizer: str) -> None:
    """pltrdy/rouge#53: emptiness is decided after tokenisation; the bad item stays in the mean."""
    references = ["clear lungs .", "clear lungs ."]
    per_study = rouge_l_per_study(tokenize([degenerate, "clear lungs ."], tokenizer), tokenize(references, tokenizer))
    assert per_study.tolist() == [0.0, 1.0]
    assert nlg_scores([degenerate, "clear lungs ."], references, tokenizer=tokenizer)["rouge_l"] == 0.5


def test_half_a_report_pays_the_brevity_penalty() -> None:
    """Event-AHU/Medical_Image_Analysis#6: scored against the full reference, not one cut to the training length."""
    reference = "one two three four five six seven eight nine ten eleven twelve"
    half = " ".join(reference.split()[:6])
    scores = nlg_scores([half], [reference])
    for order in (1, 2, 3, 4):
        assert scores[f"bleu_{order}"] == pytest.approx(math.exp(1 - 12 / 6), abs=1e-6)
    assert scores["bleu_4"] == pytest.approx(0.3679, abs=5e-5)
    # P 1, R 0.5: F1 is 0.6667; the convention's beta of 1.2 weighs recall more
    assert scores["rouge_l"] == pytest.approx((1 + 1.44) * 0.5 / (0.5 + 1.44), abs=1e-12)
    assert nlg_scores([half], [half])["bleu_4"] == pytest.approx(1.0, abs=1e-6)


def test_cider_of_one_study_is_absent_with_a_reason() -> None:
    groups, absent = nlg_statistics([["clear"]], [["clear"]])
    assert "two" not in absent and "one study" in absent["cider"]
    assert "cider" not in {name for group in groups for name in group.corpus()}


def test_decimals_count_as_words() -> None:
    """2.5 cm and 25 cm differ; a tokeniser that drops the dot would call them equal."""
    assert nlg_scores(["2.5 cm nodule"], ["25 cm nodule"])["bleu_1"] == pytest.approx(2 / 3, abs=1e-6)


def test_unequal_lists_and_no_lists_are_errors() -> None:
    with pytest.raises(DataError, match="1 hypotheses but 2 references"):
        nlg_scores(["a"], ["a", "b"])
    with pytest.raises(DataError, match="No reports"):
        nlg_scores([], [])


def test_missing_library_gives_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrg_hf.metrics.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r'pip install "rrg_hf\[metrics\]"'):
        nlg_scores(["a"], ["a"])


@pytest.fixture(scope="module")
def golden(shared_dir: Path) -> dict[str, dict[str, Any]]:
    path = shared_dir / "cases" / "metric_golden.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    return {case["metric"]: case for case in json.loads(path.read_text())["cases"]}


def test_published_bleu(golden: dict[str, dict[str, Any]]) -> None:
    case = golden["bleu_rouge"]
    reports, references = split(case["inputs"]["HYPS"]), split(case["inputs"]["REFS"])
    group = bleu_statistics(reports, references)
    corpus = group.corpus()
    assert corpus["bleu_4"] == pytest.approx(case["expected"]["default"]["bleu"], abs=1e-4)
    for order in (1, 2, 3):
        assert corpus[f"bleu_{order}"] == pytest.approx(case["expected"]["detailed"][f"bleu_{order}"], abs=1e-4)
    assert np.allclose(group.per_study()["bleu_4"], case["expected"]["per_sample"]["bleu"], rtol=1e-6, atol=1e-20)


def test_published_rouge_l_and_cider(golden: dict[str, dict[str, Any]]) -> None:
    case = golden["coco_rougeL_cider"]
    reports, references = split(case["inputs"]["HYPS"]), split(case["inputs"]["REFS"])
    expected = case["expected"]
    scores = nlg_scores(case["inputs"]["HYPS"], case["inputs"]["REFS"], tokenizer="whitespace")
    assert scores["rouge_l"] == pytest.approx(expected["ROUGE_L"], abs=case["tol"])
    assert scores["cider"] == pytest.approx(expected["CIDEr"], abs=case["tol"])
    assert np.allclose(rouge_l_per_study(reports, references), expected["ROUGE_L_per"], atol=case["tol"])
    assert np.allclose(cider_per_study(reports, references), expected["CIDEr_per"], atol=case["tol"])


def test_score_names() -> None:
    groups, absent = nlg_statistics(split(REPORTS), split(REFERENCES))
    assert tuple(name for group in groups for name in group.corpus()) == nlg.NLG_SCORES and not absent
