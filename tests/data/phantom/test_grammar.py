"""Reports say exactly what is drawn, in ordinary words."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from rrg_hf.data.phantom.facts import DRAWABLE, OPTIONS, Fact
from rrg_hf.data.phantom.grammar import write_report
from rrg_hf.data.phantom.prior import Case, sample_case
from rrg_hf.data.phantom.wording import POSSIBLE, SHORT, STATEMENTS
from rrg_hf.observations import LabelState
from rrg_hf.text.rules import label_report

N = 2500
SPLITS = ("train", "test_shifted")


@pytest.fixture(scope="module")
def reports():
    pairs = []
    for number, split in enumerate(SPLITS):
        for i in range(N):
            case = sample_case(np.random.default_rng([1, number, i]), split)
            pairs.append((case, write_report(case, np.random.default_rng([2, number, i]))))
    return pairs


def _positives(labels):
    return {name: state for name, state in labels.items() if state in (LabelState.POSITIVE, LabelState.UNCERTAIN)}


def test_the_rule_labeller_reads_every_label_off_the_findings(reports):
    wrong = Counter()
    examples = {}
    for _, report in reports:
        read = label_report(report.findings)
        for name, state in report.labels.items():
            if read[name] is not state:
                wrong[name, str(state), str(read[name])] += 1
                examples[name] = report.findings
    assert not wrong, f"(observation, stated, read): {wrong}; for example {examples}"


def test_the_impression_repeats_what_is_positive(reports):
    for case, report in reports:
        read = _positives(label_report(report.impression))
        read.pop("No Finding", None)
        assert read == {fact.observation: fact.state for fact in case.facts}, report.impression


def test_labels_are_the_drawn_facts_and_denials(reports):
    for case, report in reports:
        drawn = {fact.observation: fact.state for fact in case.facts}
        stated = _positives(report.labels)
        normal = set(drawn) <= {"Support Devices"}
        assert stated.pop("No Finding", None) == (LabelState.POSITIVE if normal else None)
        assert stated == drawn


@pytest.mark.parametrize("name", DRAWABLE)
def test_the_text_gives_side_zone_severity_and_change(name):
    sides, zones, severities, kinds = OPTIONS[name]
    for i in range(60):
        rng = np.random.default_rng([i, DRAWABLE.index(name)])

        def any_of(choices, rng=rng):
            return choices[int(rng.integers(len(choices)))] if choices else None

        fact = Fact(name, side=any_of(sides), zone=any_of(zones), severity=any_of(severities), kind=any_of(kinds))
        report = write_report(Case((fact,), "healthy", False), rng)
        for text in (report.findings, report.impression):
            statement = " ".join(
                s for s in re.split(r"(?<=\.) ", text) if label_report(s)[name] is LabelState.POSITIVE
            )
            assert statement, text
            if fact.side == "bilateral":
                assert re.search(r"\b(bilateral|both)\b", statement, re.I)
            elif fact.side:
                assert re.search(rf"\b{fact.side}\b", statement, re.I)
                assert not re.search(rf"\b{'left' if fact.side == 'right' else 'right'}\b", statement, re.I)
            if fact.zone:
                assert re.search(rf"\b{fact.zone}\b", statement)
            if fact.severity:
                assert re.search(rf"\b{fact.severity}", statement, re.I)


def test_every_fact_has_words():
    for name, (*_, kinds) in OPTIONS.items():
        for key in [f"{name}/{kind}" for kind in kinds] or [name]:
            assert STATEMENTS[key] and SHORT[key]
            assert name in ("Support Devices",) or key == "Lung Lesion/mass" or POSSIBLE[key]


def test_reports_read_like_reports(reports):
    for _, report in reports:
        for text in (report.findings, report.impression, report.indication or "None."):
            assert text == text.strip()
            assert text.endswith(".")
            assert not re.search(r"[{}\[\]]|  |\.\.| \.|,\.", text)
            assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text), text
            assert all(sentence[0].isupper() or sentence[0].isdigit() for sentence in re.split(r"(?<=\.) ", text))


def test_length_order_and_vocabulary(reports):
    lengths = np.array([len(report.findings.split()) for _, report in reports])
    assert np.percentile(lengths, 2) >= 20
    assert np.percentile(lengths, 98) <= 64
    assert 30 < lengths.mean() < 50
    words = Counter(word for _, r in reports for word in re.findall(r"[a-z-]+", r.findings.lower()))
    assert 130 < len(words) < 350
    assert len({r.findings for _, r in reports}) > 0.9 * len(reports)
    first = Counter(r.findings.split(".")[0] for _, r in reports)
    assert first.most_common(1)[0][1] < 0.25 * len(reports), "the order of sentences varies"


def test_some_reports_compare_hedge_and_lack_an_indication(reports):
    changed = [report for case, report in reports if any(fact.change for fact in case.facts)]
    assert 0.05 < len(changed) / len(reports) < 0.4
    assert all(report.comparison for report in changed)
    assert any(report.comparison is None for _, report in reports)
    hedged = sum(any(f.state is LabelState.UNCERTAIN for f in case.facts) for case, _ in reports)
    assert 0.05 < hedged / len(reports) < 0.4
    silent = sum(report.indication is None for _, report in reports)
    assert 0.03 < silent / len(reports) < 0.1
