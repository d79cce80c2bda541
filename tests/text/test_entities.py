"""The rule-based entity extractor: hand-annotated sentences, the format, and what must hold for any text."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrg_hf.text.entities import ENTITY_RULES_VERSION, extract_graph, extract_typed_entities, split_words

# Words joined by "_", ":", label (A, DP, DA, U), then ">" modify, "@" located_at, "~" suggestive_of with the target's
# words. Annotated by hand after RadGraph's published examples; 68 of the first 72
# were read so at first pass.
CASES = """
Mild pulmonary edema. | Mild:DP>edema pulmonary:A edema:DP@pulmonary
Small left pleural effusion. | Small:DP>effusion left:A>pleural pleural:A effusion:DP@pleural
Left lower lobe consolidation | Left:A>lobe lower:A>lobe lobe:A consolidation:DP@lobe
Right basilar opacity. | Right:A>basilar basilar:A opacity:DP@basilar
Patchy opacity in the right lower lobe. | Patchy:DP>opacity opacity:DP@lobe right:A>lobe lower:A>lobe lobe:A
Nodule in the apex of the left lung. | Nodule:DP@apex apex:A>lung left:A>lung lung:A
Opacities in the right and left bases. | Opacities:DP@bases right:A>bases left:A>bases bases:A
Opacity in the left base and lingula. | Opacity:DP@base@lingula left:A>base base:A lingula:A
Bilateral effusions, small. | Bilateral:A effusions:DP@Bilateral small:DP>effusions
Small and loculated effusion. | Small:DP>effusion loculated:DP>effusion effusion:DP
Mild to moderate cardiomegaly. | Mild:DP>cardiomegaly moderate:DP>cardiomegaly cardiomegaly:DP
Stable mild cardiomegaly. | Stable:DP>cardiomegaly mild:DP>cardiomegaly cardiomegaly:DP
Interval improvement in pulmonary edema. | improvement:DP>edema pulmonary:A edema:DP@pulmonary
The effusion is small and unchanged. | effusion:DP small:DP>effusion unchanged:DP>effusion
Opacity in the left base has increased in size. | Opacity:DP@base left:A>base base:A increased:DP>Opacity size:A
Compression fracture deformity of T8. | Compression:DP>deformity fracture:DP>deformity deformity:DP@T8 T8:A
Old right 6th rib fracture. | Old:DP>fracture right:A>rib 6th:A>rib rib:A fracture:DP@rib
Elevation of the right hemidiaphragm. | Elevation:DP@hemidiaphragm right:A>hemidiaphragm hemidiaphragm:A
Degenerative changes of the thoracic spine. | Degenerative:DP>changes changes:DP@spine thoracic:A>spine spine:A
The left lung shows a nodule. | left:A>lung lung:A nodule:DP@lung
Heart size is normal. | Heart:A size:A>Heart normal:DP@Heart
The heart is normal in size. | heart:A normal:DP@heart size:A>heart
Heart and mediastinum of normal size. | Heart:A mediastinum:A normal:DP@Heart@mediastinum size:A>Heart>mediastinum
Heart size within normal limits. | Heart:A size:A>Heart within_normal_limits:DP@Heart
The heart is mildly enlarged. | heart:A mildly:DP>enlarged enlarged:DP@heart
The heart is not enlarged. | heart:A enlarged:DA@heart
The heart size and mediastinal contours are normal. | heart:A size:A>heart mediastinal:A contours:A>mediastinal normal:DP@heart@mediastinal
The lungs are clear bilaterally. | lungs:A clear:DP@lungs bilaterally:A>lungs
The lungs are clear and expanded. | lungs:A clear:DP@lungs expanded:DP@lungs
Low lung volumes. | Low:DP@lung lung:A volumes:A>lung
Tortuous aorta. | Tortuous:DP@aorta aorta:A
Both lungs are hyperexpanded but clear. | Both:A>lungs lungs:A hyperexpanded:DP@lungs clear:DP@lungs
No pneumothorax. | pneumothorax:DA
No pneumothorax, effusion, or focal consolidation. | pneumothorax:DA effusion:DA focal:DA>consolidation consolidation:DA
No acute cardiopulmonary process. | acute:DA>process cardiopulmonary:A process:DA@cardiopulmonary
There is no evidence of pleural effusion or pneumothorax. | pleural:A effusion:DA@pleural pneumothorax:DA
The lungs are clear without effusion. | lungs:A clear:DP@lungs effusion:DA
Lungs are free of infiltrate. | Lungs:A infiltrate:DA
Pneumothorax has resolved. | Pneumothorax:DA
Effusion is not seen. | Effusion:DA
No pneumothorax but small effusion. | pneumothorax:DA small:DP>effusion effusion:DP
No new focal consolidation. | new:DA>consolidation focal:DA>consolidation consolidation:DA
No significant change since the previous exam. | significant:DA>change change:DA
The feeding tube has been removed. | feeding:DA>tube tube:DA
No free air under the diaphragm. | free:DA>air air:DA@diaphragm diaphragm:A
No findings of edema. | edema:DA
Possible pneumonia. | pneumonia:U
Probable small effusion. | small:U>effusion effusion:U
Likely atelectasis. | atelectasis:U
Infection cannot be excluded. | Infection:U
Atelectasis or pneumonia. | Atelectasis:U pneumonia:U
Suspected edema in the lungs. | edema:U@lungs lungs:A
Opacity may represent pneumonia. | Opacity:DP~pneumonia pneumonia:U
Opacities likely represent atelectasis or aspiration. | Opacities:DP~atelectasis~aspiration atelectasis:U aspiration:U
Opacity in the left base, likely atelectasis. | Opacity:DP@base~atelectasis left:A>base base:A atelectasis:U
Findings consistent with pulmonary edema. | Findings:DP~edema pulmonary:A edema:DP@pulmonary
Opacity suggestive of pneumonia. | Opacity:DP~pneumonia pneumonia:U
Opacity is not suggestive of pneumonia. | Opacity:DP pneumonia:DA
Effusion and likely atelectasis. | Effusion:DP atelectasis:U
ET tube terminates 2 cm above the carina. | ET_tube:DP@2_cm_above 2_cm_above:A>carina carina:A
Endotracheal tube in the trachea. | Endotracheal:DP>tube tube:DP@trachea trachea:A
Right IJ line with tip in the SVC. | Right:A>IJ IJ:A line:DP@IJ tip:DP>line@SVC SVC:A
Leads in the right atrium and right ventricle. | Leads:DP@atrium@ventricle right:A>atrium atrium:A right:A>ventricle ventricle:A
Median sternotomy wires are intact. | Median:DP>wires sternotomy:DP>wires wires:DP intact:DP>wires
NG tube in the stomach. | NG_tube:DP@stomach stomach:A
A 1.5 cm nodule. | 1_._5_cm:DP>nodule nodule:DP
Nodule measuring 5-mm. | Nodule:DP 5-mm:DP
1.2 x 3 cm mass in the lingula. | 1_._2_x_3_cm:DP>mass mass:DP@lingula lingula:A
no evidence of acute cardiopulmonary process moderate hiatal hernia | acute:DA>process cardiopulmonary:A process:DA@cardiopulmonary moderate:DP>hernia hiatal:A hernia:DP@hiatal
Clear lung XXXX bilaterally. | Clear:DP@lung lung:A bilaterally:A>lung
Lateral view of the chest. | chest:A
Indication: rule out pneumonia. Findings: Small effusion. | Small:DP>effusion effusion:DP
There is a moderate right pneumothorax with leftward shift of the mediastinum. | moderate:DP>pneumothorax right:A pneumothorax:DP@right leftward:A shift:DP@leftward@mediastinum mediastinum:A
Small bilateral pleural effusions with adjacent compressive atelectasis. | Small:DP>effusions bilateral:A>pleural pleural:A effusions:DP@pleural compressive:DP>atelectasis atelectasis:DP
New hazy opacification of the right hemithorax is concerning for layering effusion. | New:DP>opacification hazy:DP>opacification opacification:DP@hemithorax~effusion right:A>hemithorax hemithorax:A layering:U>effusion effusion:U
Right-sided PICC line, with its tip projecting over the cavoatrial junction. | Right-sided:A PICC:DP>line line:DP@Right-sided tip:DP>line@junction cavoatrial:A>junction junction:A
No displaced rib fracture is identified. | displaced:DA>fracture rib:A fracture:DA@rib
Prominence of the right hilum may reflect adenopathy. | Prominence:DP@hilum~adenopathy right:A>hilum hilum:A adenopathy:U
Blunting of the left costophrenic angle, compatible with small effusion or thickening. | Blunting:DP@angle~effusion~thickening left:A>angle costophrenic:A>angle angle:A small:U>effusion effusion:U thickening:U
The trachea is midline. | trachea:A midline:DP@trachea
The previously seen right upper lobe opacity has resolved. | right:A>lobe upper:A>lobe lobe:A opacity:DA@lobe
Increased interstitial markings bilaterally, likely chronic. | Increased:DP>markings interstitial:DP>markings markings:DP@bilaterally bilaterally:A chronic:U>markings
Flattened diaphragms, consistent with COPD. | Flattened:DP@diaphragms~COPD diaphragms:A COPD:DP
Pleural effusion: none. | Pleural:A effusion:DA@Pleural
If clinical concern persists, CT may be obtained to evaluate for pneumonia. | pneumonia:U
The pulmonary vasculature is not engorged. | pulmonary:A>vasculature vasculature:A engorged:DA@vasculature
Opacity in the right mid and lower lung. | Opacity:DP@lung right:A>lung mid:A>lung lower:A>lung lung:A
"""  # noqa: E501
SHORT = {"ANAT-DP": "A", "OBS-DP": "DP", "OBS-DA": "DA", "OBS-U": "U"}
MARKS = {"modify": ">", "located_at": "@", "suggestive_of": "~"}


def notation(graph: dict[str, Any]) -> str:
    entities = graph["entities"]
    return " ".join(
        f"{entity['tokens'].replace(' ', '_')}:{SHORT[entity['label']]}"
        + "".join(MARKS[kind] + entities[target]["tokens"].replace(" ", "_") for kind, target in entity["relations"])
        for entity in entities.values()
    )


def parse(line: str) -> tuple[str, str]:
    text, _, expected = line.partition(" | ")
    return text, expected


@pytest.mark.parametrize(("text", "expected"), [parse(line) for line in CASES.strip().splitlines()])
def test_hand_annotated_sentence(text: str, expected: str) -> None:
    def key(entity: str) -> Any:
        head, *relations = entity.replace(">", " >").replace("@", " @").replace("~", " ~").split()
        return head, sorted(relations)

    assert [key(entity) for entity in notation(extract_graph(text)).split()] == [key(e) for e in expected.split()]


def test_published_format() -> None:
    """Keys, label and numbering of RadGraph v1's own example."""
    graph = extract_graph("no evidence of acute cardiopulmonary process moderate hiatal hernia")
    assert list(graph) == ["text", "entities", "data_source", "data_split"]
    assert graph["text"] == "no evidence of acute cardiopulmonary process moderate hiatal hernia"
    assert graph["data_source"] is None and graph["data_split"] == "inference"
    assert graph["entities"]["3"] == {
        "tokens": "process", "label": "OBS-DA", "start_ix": 5, "end_ix": 5, "relations": [["located_at", "2"]],
    }  # fmt: skip
    assert json.loads(json.dumps(graph)) == graph
    assert isinstance(ENTITY_RULES_VERSION, str)


def test_published_examples_have_the_same_entities(shared_dir: Any) -> None:
    """Every entity of the published annotations is found with its state; XL labels are read as v1's."""
    path = shared_dir / "data" / "radgraph" / "radgraph_example_annotations.json"
    states = {"present": "DP", "absent": "DA", "uncertain": "U"}
    for documents in json.loads(path.read_text()).values():
        for document in documents.values():
            found = {
                (entity["start_ix"], entity["end_ix"]): entity["label"]
                for entity in extract_graph(document["text"])["entities"].values()
            }
            for entity in document["entities"].values():
                label = entity["label"]
                if "::" in label:
                    kind = "ANAT" if label.startswith("Anatomy") else "OBS"
                    label = f"{kind}-{states[label.split()[-1]]}"
                assert found.get((entity["start_ix"], entity["end_ix"])) == label, (document["text"], entity["tokens"])


def test_words_are_those_of_the_v1_preprocessing() -> None:
    assert split_words("1.5 cm, non-calcified (old)? a/b: x!") == [
        "1", ".", "5", "cm", ",", "non-calcified", "(", "old", ")", "?", "a", "/", "b", ":", "x", "!",
    ]  # fmt: skip


def slow_words(text: str) -> list[str]:
    for mark in "/,:.!?()":
        text = text.replace(mark, f" {mark} ")
    return text.split()


PIECES = st.sampled_from(
    ["no", "small", "left", "lower lobe", "effusion", "pneumothorax", ".", ",", "and", "or", "of the", "in the", "is",
     "heart size", "normal", "may represent", "pneumonia", "2.5 cm", "above", "carina", "ET tube", "tip", "with",
     "XXXX", "\n", "___", ";", "likely", "cannot be excluded", "mildly", "enlarged", "within normal limits", "é", "İ",
     "—", "Indication:", "Findings:", "resolved", "both", "T8", "but", "right", "stable", "change", "lungs", "clear"]
)  # fmt: skip


def check(text: str) -> None:
    graph = extract_graph(text)
    words = slow_words(text)
    assert graph["text"] == " ".join(words)
    entities = graph["entities"]
    assert list(entities) == [str(number) for number in range(1, len(entities) + 1)]
    last = -1
    for number, entity in entities.items():
        assert last < entity["start_ix"] <= entity["end_ix"] < len(words)
        last = entity["end_ix"]
        assert entity["tokens"] == " ".join(words[entity["start_ix"] : entity["end_ix"] + 1])
        assert entity["label"] in SHORT
        assert len({tuple(pair) for pair in entity["relations"]}) == len(entity["relations"])
        for kind, target in entity["relations"]:
            assert kind in MARKS and target in entities and target != number
            if kind == "located_at":
                assert entities[target]["label"] == "ANAT-DP" and entity["label"] != "ANAT-DP"
            if kind == "suggestive_of":
                assert entities[target]["label"] != "ANAT-DP" and entity["label"] != "ANAT-DP"
    for string, kind in extract_typed_entities(text):
        assert kind in ("anatomy", "abnormality", "disease", "non-abnormality", "non-disease")
        assert string and set(string.split()) <= set(words)


@given(st.lists(PIECES, max_size=40).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_invariants_of_report_like_text(text: str) -> None:
    check(text)
    assert extract_graph(text) == extract_graph(text)


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_invariants_of_any_text(text: str) -> None:
    check(text)


@given(st.lists(PIECES, max_size=12).map(" ".join), st.lists(PIECES, max_size=12).map(" ".join))
@settings(max_examples=150, deadline=None)
def test_a_sentence_is_read_without_its_neighbours(first: str, second: str) -> None:
    """Paragraphs do not influence each other, whatever they hold."""
    for header in ("Indication:", "Findings:"):
        first, second = first.replace(header, ""), second.replace(header, "")
    first, second = f"{first.strip()} .".lstrip(" ."), f"{second.strip()} .".lstrip(" .")
    both = notation(extract_graph(f"{first}\n\n{second}")).split()
    assert both == notation(extract_graph(first)).split() + notation(extract_graph(second)).split()


@pytest.mark.parametrize("text", ["", " ", "\n\t", "___", "XXXX", ".", "?!", "The patient was seen."])
def test_texts_without_entities(text: str) -> None:
    assert extract_graph(text)["entities"] == {}
    assert extract_typed_entities(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "small left effusion " * 500,
        "no effusion, " * 800,
        "opacity may represent pneumonia or " * 300,
        "1" * 10_000,
        "1 . " * 2_500,
        "left " * 2_000,
        "x" * 10_000,
        "effusion in the left " * 480,
        "\n" * 10_000,
        "é—" * 5_000,
    ],
)
def test_long_and_hostile_reports_take_linear_time(text: str) -> None:
    start = time.process_time()
    check(text)
    assert time.process_time() - start < 4


def test_typed_entities() -> None:
    text = (
        "Small left pleural effusion. No pneumothorax. Opacity in the left lower lobe may reflect pneumonia. "
        "The heart is normal in size. No focal consolidation. Heart is enlarged."
    )
    assert extract_typed_entities(text) == [
        ("Small pleural effusion", "abnormality"),
        ("left", "anatomy"),
        ("pneumothorax", "non-disease"),
        ("Opacity", "abnormality"),
        ("left lower lobe", "anatomy"),
        ("pneumonia", "disease"),
        ("heart", "anatomy"),
        ("normal", "non-abnormality"),
        ("size", "anatomy"),
        ("focal consolidation", "non-abnormality"),
        ("Heart", "anatomy"),
        ("enlarged", "abnormality"),
    ]


def test_states_agree_with_phantom_truth() -> None:
    from rrg_hf.data.phantom import phantom_study

    words = {
        "Pleural Effusion": "effusion",
        "Pneumothorax": "pneumothorax",
        "Edema": "edema",
        "Pneumonia": "pneumonia",
    }
    labels = {"positive": "OBS-DP", "negative": "OBS-DA", "uncertain": "OBS-U"}
    checked = 0
    for index in range(60):
        study = phantom_study(index)
        entities = extract_graph(f"{study.findings} {study.impression}")["entities"].values()
        for observation, word in words.items():
            state = study.labels[observation].value
            if state in labels:
                assert labels[state] in {e["label"] for e in entities if e["tokens"].lower().startswith(word)}
                checked += 1
    assert checked > 100
