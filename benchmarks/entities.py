"""Agreement and speed of the rule-based entity extractor.

Indexers at the National Library of Medicine coded every IU report by hand, as "Opacity/lung/base/left/mild": a
finding, where it is and how it is. That checks what the extractor finds and what it relates to it. Which words a code
stands for is listed below; codes without an observation word of their own ("Lung/hypoinflation") are left out.

    python benchmarks/entities.py --reports indiana_reports.csv
    python benchmarks/entities.py --reports indiana_reports.csv --radgraph radgraph_example_annotations.json
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rrg_hf.text.cleaning import is_missing
from rrg_hf.text.entities import extract_graph

# MeSH heading -> beginnings of the words that name it.
FINDINGS: dict[str, tuple[str, ...]] = {
    "Opacity": ("opac", "infiltrat", "densit", "airspace", "disease", "consolid", "haz", "markings"),
    "Density": ("densit", "opac", "nodul"),
    "Airspace Disease": ("disease", "airspace", "opac", "infiltrat", "consolid"),
    "Infiltrate": ("infiltrat", "opac", "disease", "consolid"),
    "Consolidation": ("consolid",),
    "Cardiomegaly": ("cardiomegaly", "enlarged", "enlargement", "prominent", "large"),
    "Pulmonary Atelectasis": ("atelect", "collapse"),
    "Pleural Effusion": ("effusion", "fluid", "hydro"),
    "Pneumothorax": ("pneumothora",),
    "Pulmonary Edema": ("edema", "failure", "chf", "overload"),
    "Pulmonary Congestion": ("congest", "engorge", "prominen", "edema", "failure"),
    "Pneumonia": ("pneumonia", "infect", "pneumonic"),
    "Calcified Granuloma": ("granulom", "calcif", "nodul"),
    "Granulomatous Disease": ("disease", "granulom", "process", "change"),
    "Granuloma": ("granulom",),
    "Calcinosis": ("calcif",),
    "Cicatrix": ("scar", "fibro"),
    "Nodule": ("nodul",),
    "Mass": ("mass",),
    "Fractures, Bone": ("fractur",),
    "Scoliosis": ("scolio", "dextroscolio", "levoscolio", "curvature"),
    "Kyphosis": ("kypho",),
    "Osteophyte": ("osteophyt", "spur"),
    "Spondylosis": ("spondyl", "change", "degenerat"),
    "Deformity": ("deform",),
    "Emphysema": ("emphysem",),
    "Pulmonary Emphysema": ("emphysem",),
    "Pulmonary Disease, Chronic Obstructive": ("copd", "disease", "obstructive"),
    "Hernia, Hiatal": ("hernia",),
    "Atherosclerosis": ("athero", "calcif", "arterio"),
    "Thickening": ("thick",),
    "Diaphragmatic Eventration": ("eventrat",),
    "Pulmonary Fibrosis": ("fibro",),
    "Catheters, Indwelling": ("catheter", "line", "port", "picc", "tip", "tube", "cvc", "mediport"),
    "Surgical Instruments": ("clip", "staple", "sutur", "wire", "sternotomy", "surg"),
    "Tube, Inserted": ("tube", "tracheostomy", "drain", "ett"),
    "Stents": ("stent",),
    "Implanted Medical Device": (
        "pacemaker",
        "pacer",
        "device",
        "lead",
        "defib",
        "aicd",
        "icd",
        "generator",
        "stimul",
    ),
    "Lucency": ("lucen",),
    "Arthritis": ("arthr", "change", "degenerat"),
    "Heart Failure": ("failure", "chf"),
}
# Qualifiers: side, place and manner -> beginnings of the words that say it.
SIDES: dict[str, tuple[str, ...]] = {
    "right": ("right", "rt"),
    "left": ("left", "lingul", "lt"),
    "bilateral": ("bilateral", "bibas", "biap", "both", "right", "left"),
}
PLACES: dict[str, tuple[str, ...]] = {
    "base": ("base", "basal", "basilar", "bibas", "costophrenic"),
    "lower lobe": ("lower", "base", "basilar"),
    "upper lobe": ("upper", "apex", "apic", "apical"),
    "middle lobe": ("middle",),
    "apex": ("apex", "apic", "biapic"),
    "lingula": ("lingul",),
    "hilum": ("hil", "perihil", "infrahil", "suprahil", "parahil"),
    "ribs": ("rib",),
    "pleura": ("pleur",),
    "aorta": ("aort",),
    "thoracic vertebrae": (
        "thorac",
        "midthorac",
        "spine",
        "t-spine",
        "vertebr",
        "t1",
        "t2",
        "t3",
        "t4",
        "t5",
        "t6",
        "t7",
        "t8",
        "t9",
    ),
    "mediastinum": ("mediast", "cardiomediast"),
    "retrocardiac": ("retrocard",),
    "clavicle": ("clavic",),
    "lymph nodes": ("lymph", "node"),
    "thorax": ("thora", "chest", "hemithor"),
}
MANNERS: dict[str, tuple[str, ...]] = {
    "mild": ("mild", "minimal", "slight", "small", "borderline", "trace", "subtle", "tiny"),
    "moderate": ("moderate",),
    "severe": ("severe", "marked", "large", "massive", "extensive", "advanced"),
    "small": ("small", "tiny", "trace", "minimal", "mm", "1", "2", "3", "4", "5", "6", "7", "8", "9"),
    "large": ("large",),
    "chronic": ("chronic", "old", "stable", "unchanged"),
    "healed": ("heal", "old", "remote"),
    "multiple": ("multiple", "several", "scattered", "bilateral", "two", "numerous"),
    "scattered": ("scatter",),
    "patchy": ("patchy",),
    "streaky": ("streak", "linear", "band"),
    "focal": ("focal",),
    "diffuse": ("diffus",),
    "interstitial": ("interstit",),
    "round": ("round", "nodul"),
}


def related(entities: dict[str, Any], number: str) -> list[str]:
    """Words of everything that says something of one entity: what it points to, what points to it, one step on.

    A diagnosis shares what is said of the finding that suggests it: coders write "Pneumonia/lower lobe/right" for a
    right lower lobe opacity that suggests pneumonia.
    """
    near = {number}
    for _ in range(2):
        for other, entity in entities.items():
            if other in near:
                near |= {target for kind, target in entity["relations"] if kind != "suggestive_of"}
            elif any(kind != "located_at" and target in near for kind, target in entity["relations"]):
                near.add(other)
    return [word for other in near for word in entities[other]["tokens"].lower().split()]


def against_codes(path: Path) -> tuple[Counter[str], list[str]]:
    """Counts of found and missed findings and qualifiers, and the reports' texts."""
    counts: Counter[str] = Counter()
    texts = []
    with path.open(newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            text = " ".join(row[key] for key in ("findings", "impression") if not is_missing(row[key]))
            if not text or row["MeSH"].strip() in ("", "No Indexing"):
                continue
            texts.append(text)
            entities = extract_graph(text)["entities"]
            for term in row["MeSH"].split(";"):
                heading, *qualifiers = (part.strip() for part in term.split("/"))
                if heading not in FINDINGS:
                    continue
                stems = FINDINGS[heading]
                named = [
                    number
                    for number, entity in entities.items()
                    if entity["label"] in ("OBS-DP", "OBS-U") and entity["tokens"].lower().startswith(stems)
                ]
                counts["finding", "all"] += 1
                counts["finding", "found"] += bool(named)
                if not named:
                    continue
                words = [related(entities, number) for number in named]
                everything = {word for group in words for word in group}
                report = text.lower().replace(",", " ").replace(".", " ").replace("-", " ").split()
                for kind, table in (("side", SIDES), ("place", PLACES), ("manner", MANNERS)):
                    for qualifier in qualifiers:
                        if qualifier not in table:
                            continue
                        counts[kind, "all"] += 1
                        counts[kind, "written"] += any(word.startswith(table[qualifier]) for word in report)
                        counts[kind, "found"] += any(word.startswith(table[qualifier]) for word in everything)
                coded = [qualifier for qualifier in ("right", "left") if qualifier in qualifiers]
                if len(coded) == 1 and "bilateral" not in qualifiers and len(named) == 1:
                    given = {side for side in ("right", "left") if any(word.startswith(side) for word in everything)}
                    counts["side given", "all"] += bool(given)
                    counts["side given", "right"] += given == set(coded)
    return counts, texts


# Observation of a phantom report -> beginnings of the words that name it, and the label of each state.
PHANTOM = {
    "Enlarged Cardiomediastinum": ("widen", "enlarged", "mediast"),
    "Cardiomegaly": ("cardiomegaly", "enlarged", "enlargement"),
    "Lung Opacity": ("opac",),
    "Lung Lesion": ("nodul", "mass", "lesion"),
    "Edema": ("edema", "congest"),
    "Consolidation": ("consolid",),
    "Pneumonia": ("pneumonia",),
    "Atelectasis": ("atelect",),
    "Pneumothorax": ("pneumothorax",),
    "Pleural Effusion": ("effusion",),
    "Pleural Other": ("thicken", "plaque", "scar"),
    "Fracture": ("fracture",),
}
STATES = {"positive": "OBS-DP", "negative": "OBS-DA", "uncertain": "OBS-U"}


def against_phantom(size: int) -> Counter[str]:
    """Counts over generated reports, whose facts are known: states of observations, and attributes of facts."""
    from rrg_hf.data.phantom import phantom_study

    counts: Counter[str] = Counter()
    for index in range(size):
        study = phantom_study(index)
        entities = extract_graph(f"{study.findings} {study.impression}")["entities"]
        for name, stems in PHANTOM.items():
            state = study.labels[name].value
            if state not in STATES or name in ("Enlarged Cardiomediastinum", "Cardiomegaly"):
                continue  # those two are denied by calling anatomy normal
            labels = [e["label"] for e in entities.values() if e["tokens"].lower().startswith(stems)]
            counts["state", "all"] += 1
            counts["state", "found"] += STATES[state] in labels
        for fact in study.facts:
            stems = PHANTOM.get(fact.observation)
            if stems is None:
                continue
            label = STATES[fact.state.value]
            groups = [
                related(entities, number)
                for number, entity in entities.items()
                if entity["label"] == label and entity["tokens"].lower().startswith(stems)
            ]
            wanted = [("side", fact.side), ("zone", fact.zone), ("severity", fact.severity)]
            for kind, value in wanted:
                if value:
                    spellings = {"bilateral": ("bilat", "both", "bibas", "biap")}
                    stem = spellings.get(value, (value[:5],))
                    counts[kind, "all"] += 1
                    counts[kind, "found"] += any(word.startswith(stem) for group in groups for word in group)
    return counts


def against_annotations(path: Path) -> list[tuple[str, tuple[int, int, int], tuple[int, int, int]]]:
    """Per published annotation: text, and (shared, expected, given) of entities with label and of relations."""
    rows = []
    for model, documents in json.loads(path.read_text(encoding="utf-8")).items():
        for document in documents.values():
            given = extract_graph(document["text"])["entities"]
            counts = []
            for parts in (_entities, _relations):
                expected_parts, given_parts = parts(document["entities"]), parts(given)
                counts.append((len(expected_parts & given_parts), len(expected_parts), len(given_parts)))
            rows.append((f"{model}: {document['text']}", counts[0], counts[1]))
    return rows


def _label(label: str) -> str:
    """XL labels as v1 has them."""
    if "::" not in label:
        return label
    kind, *_, state = label.split("::")
    return ("ANAT-" if kind == "Anatomy" else "OBS-") + {"present": "DP", "absent": "DA", "uncertain": "U"}[
        state.split()[-1]
    ]


def _entities(entities: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {(e["start_ix"], e["end_ix"], _label(e["label"])) for e in entities.values()}


def _relations(entities: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {
        (e["start_ix"], kind, entities[target]["start_ix"])
        for e in entities.values()
        for kind, target in e["relations"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=Path, required=True, help="indiana_reports.csv")
    parser.add_argument("--phantom", type=int, default=0, help="number of generated reports")
    parser.add_argument("--radgraph", type=Path, help="published example annotations (JSON)")
    arguments = parser.parse_args()
    counts, texts = against_codes(arguments.reports)
    print(f"{len(texts)} reports")
    print(f"findings named: {counts['finding', 'found']} of {counts['finding', 'all']}")
    for kind in ("side", "place", "manner"):
        total, written, found = (counts[kind, name] for name in ("all", "written", "found"))
        print(f"{kind}: related {found} of {total} coded ({found / total:.3f}); written anywhere {written}")
    print(f"side right where one is given: {counts['side given', 'right']} of {counts['side given', 'all']}")
    if arguments.radgraph:
        for text, entities, relations in against_annotations(arguments.radgraph):
            print(f"{text[:70]}: entities {entities}, relations {relations} (shared, expected, given)")
    if arguments.phantom:
        phantom = against_phantom(arguments.phantom)
        for kind in ("state", "side", "zone", "severity"):
            print(f"phantom {kind}: {phantom[kind, 'found']} of {phantom[kind, 'all']}")
    start = time.process_time()
    for text in texts:
        extract_graph(text)
    print(f"{len(texts) / (time.process_time() - start):.0f} reports/s (one core, process time)")


if __name__ == "__main__":
    main()
