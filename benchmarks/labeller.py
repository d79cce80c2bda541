"""Agreement and speed of the rule labeller on the IU X-Ray reports and their human MeSH codes.

Indexers at the National Library of Medicine coded every IU report by hand. Where a code names the same thing as an
observation, it is a human label for "present or possible" (codes do not tell the two apart, and do not say "absent").

    python benchmarks/labeller.py --reports indiana_reports.csv                     # the labeller
    python benchmarks/labeller.py --reports indiana_reports.csv --context medspacy  # its mentions, medspaCy's ConText
    python benchmarks/labeller.py --reports indiana_reports.csv --context negspacy  # its mentions, negspaCy's NegEx

The two context engines are optional and not dependencies of rrg_hf; see docs/labeller.md for what they measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rrg_hf.observations import NO_FINDING, OBSERVATIONS, Labels, LabelState, empty_labels
from rrg_hf.text.cleaning import is_missing
from rrg_hf.text.rules import find_mentions, label_report

# MeSH heading (before the first slash) to observation; a qualifier, where given, must be among the later parts.
CODES: list[tuple[str, str | None, str]] = [
    ("Cardiomegaly", None, "Cardiomegaly"),
    ("Cardiac Shadow", "enlarged", "Cardiomegaly"),
    ("Cardiac Shadow", "borderline", "Cardiomegaly"),
    ("Mediastinum", "prominent", "Enlarged Cardiomediastinum"),
    ("Mediastinum", "enlarged", "Enlarged Cardiomediastinum"),
    ("Opacity", None, "Lung Opacity"),
    ("Airspace Disease", None, "Lung Opacity"),
    ("Infiltrate", None, "Lung Opacity"),
    ("Cicatrix", "lung", "Lung Opacity"),
    ("Markings", "interstitial", "Lung Opacity"),
    ("Lung Diseases, Interstitial", None, "Lung Opacity"),
    ("Density", "lung", "Lung Opacity"),
    ("Nodule", None, "Lung Lesion"),
    ("Mass", None, "Lung Lesion"),
    ("Pulmonary Edema", None, "Edema"),
    ("Pulmonary Congestion", None, "Edema"),
    ("Heart Failure", None, "Edema"),
    ("Consolidation", None, "Consolidation"),
    ("Pneumonia", None, "Pneumonia"),
    ("Pulmonary Atelectasis", None, "Atelectasis"),
    ("Pneumothorax", None, "Pneumothorax"),
    ("Hydropneumothorax", None, "Pneumothorax"),
    ("Pleural Effusion", None, "Pleural Effusion"),
    ("Hydropneumothorax", None, "Pleural Effusion"),
    ("Thickening", "pleura", "Pleural Other"),
    ("Pulmonary Fibrosis", None, "Pleural Other"),
    ("Fractures, Bone", None, "Fracture"),
    ("Catheters, Indwelling", None, "Support Devices"),
    ("Surgical Instruments", None, "Support Devices"),
    ("Implanted Medical Device", None, "Support Devices"),
    ("Medical Device", None, "Support Devices"),
    ("Tube, Inserted", None, "Support Devices"),
    ("Stents", None, "Support Devices"),
    ("Spinal Fusion", None, "Support Devices"),
    ("Sutures", None, "Support Devices"),
    ("normal", None, NO_FINDING),
]


# "Heart size is normal": these two come from predicates, which a negation engine does not judge. Engines are
# compared on the others ("micro, stated").
PREDICATED = ("Enlarged Cardiomediastinum", "Cardiomegaly")


def human_labels(mesh: str) -> set[str]:
    """Observations that a report's MeSH codes say are present or possible."""
    found = set()
    for term in mesh.split(";"):
        heading, *qualifiers = (part.strip() for part in term.split("/"))
        for code, qualifier, observation in CODES:
            if heading == code and (qualifier is None or qualifier in qualifiers):
                found.add(observation)
    return found


def present(labels: Labels, *, uncertain: bool = True) -> set[str]:
    """Observations that are positive or, unless `uncertain` is False, uncertain."""
    states = (LabelState.POSITIVE, LabelState.UNCERTAIN) if uncertain else (LabelState.POSITIVE,)
    return {name for name in OBSERVATIONS if labels[name] in states}


def read_reports(path: Path) -> list[tuple[str, str, set[str]]]:
    """(uid, findings and impression, human labels) of every report that has text and was indexed."""
    rows = []
    with path.open(newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            text = " ".join(row[key] for key in ("findings", "impression") if not is_missing(row[key]))
            if text and row["MeSH"].strip() not in ("", "No Indexing"):
                rows.append((row["uid"], text, human_labels(row["MeSH"])))
    return rows


def scores(truth: list[set[str]], guess: list[set[str]]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and support per observation, micro and macro (No Finding left out of both)."""
    table: dict[str, dict[str, float]] = {}
    total = [0, 0, 0]
    for name in OBSERVATIONS:
        hit = sum(name in t and name in g for t, g in zip(truth, guess, strict=True))
        extra = sum(name not in t and name in g for t, g in zip(truth, guess, strict=True))
        missed = sum(name in t and name not in g for t, g in zip(truth, guess, strict=True))
        table[name] = _prf(hit, extra, missed)
        if name != NO_FINDING:
            total = [a + b for a, b in zip(total, (hit, extra, missed), strict=True)]
    table["micro"] = _prf(*total)
    stated = [table[name] for name in OBSERVATIONS if name not in PREDICATED and name != NO_FINDING]
    table["micro, stated"] = _prf(*(int(sum(row[key] for row in stated)) for key in ("hit", "extra", "missed")))
    table["macro"] = {
        "f1": sum(table[name]["f1"] for name in OBSERVATIONS if name != NO_FINDING) / (len(OBSERVATIONS) - 1)
    }
    return table


def _prf(hit: int, extra: int, missed: int) -> dict[str, float]:
    precision = hit / (hit + extra) if hit + extra else 0.0
    recall = hit / (hit + missed) if hit + missed else 0.0
    f1 = 2 * hit / (2 * hit + extra + missed) if hit else 0.0
    counts = {"hit": hit, "extra": extra, "missed": missed}
    return {"precision": precision, "recall": recall, "f1": f1, "support": hit + missed, **counts}


def medspacy_labeller() -> Callable[[str], Labels]:
    """The labeller's mentions with medspaCy's sentence splitter and ConText deciding present/absent/possible."""
    import medspacy
    from loguru import logger
    from spacy.tokens import Span

    logger.remove()  # PyRuSH logs every token at debug level

    nlp = medspacy.load(medspacy_enable=["medspacy_pyrush", "medspacy_context"])
    context = nlp.get_pipe("medspacy_context")

    def label(text: str) -> Labels:
        mentions = [m for m in find_mentions(text) if m.observation != NO_FINDING]
        doc = nlp.make_doc(text)
        doc = nlp.get_pipe("medspacy_pyrush")(doc)
        spans = []
        for mention in mentions:
            span = doc.char_span(mention.start, mention.end, label=mention.observation, alignment_mode="expand")
            if span is not None:
                spans.append(Span(doc, span.start, span.end, label=mention.observation))
        doc.spans["medspacy_spans"] = spans
        context.input_span_type = "group"
        context(doc)
        labels = empty_labels()
        for span in doc.spans["medspacy_spans"]:
            state = LabelState.POSITIVE
            if span._.is_negated:
                state = LabelState.NEGATIVE
            elif span._.is_uncertain:
                state = LabelState.UNCERTAIN
            elif span._.is_hypothetical:
                continue
            _raise(labels, span.label_, state)
        return labels

    return label


def negspacy_labeller() -> Callable[[str], Labels]:
    """The labeller's mentions with spaCy's rule sentencizer and negspaCy's NegEx deciding present/absent."""
    import spacy
    from negspacy.negation import Negex  # noqa: F401  registers the factory
    from negspacy.termsets import termset

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("negex", config={"neg_termset": termset("en_clinical").get_patterns()})

    def label(text: str) -> Labels:
        mentions = [m for m in find_mentions(text) if m.observation != NO_FINDING]
        doc = nlp.make_doc(text)
        doc = nlp.get_pipe("sentencizer")(doc)
        by_span: dict[tuple[int, int], list[str]] = {}
        spans = []
        for mention in mentions:
            span = doc.char_span(mention.start, mention.end, label="FINDING", alignment_mode="expand")
            if span is not None:
                by_span.setdefault((span.start, span.end), []).append(mention.observation)
                spans.append(span)
        doc.ents = spacy.util.filter_spans(spans)
        doc = nlp.get_pipe("negex")(doc)
        labels = empty_labels()
        for span in doc.ents:
            state = LabelState.NEGATIVE if span._.negex else LabelState.POSITIVE
            for observation in by_span.get((span.start, span.end), []):
                _raise(labels, observation, state)
        return labels

    return label


def _raise(labels: Labels, observation: str, state: LabelState) -> None:
    rank = {LabelState.NOT_MENTIONED: 0, LabelState.NEGATIVE: 1, LabelState.UNCERTAIN: 2, LabelState.POSITIVE: 3}
    if rank[state] > rank[labels[observation]]:
        labels[observation] = state


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reports", type=Path, required=True, help="indiana_reports.csv")
    parser.add_argument("--context", choices=["rules", "medspacy", "negspacy"], default="rules")
    parser.add_argument("--positive-only", action="store_true", help="count uncertain labels as absent")
    parser.add_argument("--repeats", type=int, default=3, help="timed passes; the best one counts")
    parser.add_argument("--show", type=int, default=0, help="print this many disagreements per observation")
    parser.add_argument("--only", default=None, help="show disagreements of this observation only")
    parser.add_argument("--out", type=Path, default=None, help="write the table as JSON")
    args = parser.parse_args()

    rows = read_reports(args.reports)
    engines = {"rules": lambda: label_report, "medspacy": medspacy_labeller, "negspacy": negspacy_labeller}
    label = engines[args.context]()
    label(rows[0][1])
    best = float("inf")
    guess: list[set[str]] = []
    for _ in range(args.repeats):
        start = time.process_time()
        guess = [present(label(text), uncertain=not args.positive_only) for _, text, _ in rows]
        best = min(best, time.process_time() - start)
    truth = [human for *_, human in rows]
    table = scores(truth, guess)
    print(f"{args.context}: {len(rows)} reports, {len(rows) / best:,.0f} reports/s")
    for name, row in table.items():
        shown = [(key, row[key]) for key in ("precision", "recall", "f1", "support") if key in row]
        print(f"  {name:28s}" + "  ".join(f"{key} {value:8.3f}" for key, value in shown))
    if args.out:
        args.out.write_text(json.dumps({"engine": args.context, "reports_per_s": len(rows) / best, "table": table}))
    chooser = random.Random(0)
    for name in OBSERVATIONS if args.show else ():
        if args.only and name != args.only:
            continue
        for side, wrong in (
            ("labeller only", [r for r, g in zip(rows, guess, strict=True) if name in g and name not in r[2]]),
            ("codes only", [r for r, g in zip(rows, guess, strict=True) if name not in g and name in r[2]]),
        ):
            print(f"\n== {name}: {side} ({len(wrong)})")
            for uid, text, _ in chooser.sample(wrong, min(args.show, len(wrong))):
                spans = [m for m in find_mentions(text) if m.observation == name]
                print(f"  [{uid}] {text}\n      {[(m.text, m.state.value) for m in spans]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
