"""RadCliQ: the published linear model, its direction, and its four components."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.metrics.bertscore import BertScore, BertScoreReader
from rrg_hf.metrics.nlg import bleu_statistics
from rrg_hf.metrics.radcliq import (
    COMPONENTS,
    RadCliQ,
    bleu_tokens,
    radcliq_from_components,
    sentence_bleu_2,
)
from rrg_hf.metrics.reading import TextReader

from .tiny_encoders import tiny_encoder

FAST_BLEU = json.loads((Path(__file__).parent / "data" / "fast_bleu_expected.json").read_text())
REPORTS = ["Small effusion.", "pleural effusion", "", "The heart is normal. No effusion."]
REFERENCES = ["small effusion.", "pleural effusion", "clear", "The heart is large. No effusion."]


@pytest.fixture(scope="module")
def golden(shared_dir: Path) -> dict[str, list[dict[str, Any]]]:
    path = shared_dir / "cases" / "metric_golden.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    content = json.loads(path.read_text())
    names = {case["metric"] for case in content["cases"]}
    return {name: [case for case in content["cases"] if case["metric"] == name] for name in names} | {
        "parameters": content["radcliq_parameters"]
    }


def annotation(text: str) -> dict[str, Any]:
    """Every word an entity, a word and its right neighbour related, in the published format."""
    words = text.split()
    entities = {}
    for index, word in enumerate(words, 1):
        label = "OBS-DA" if word == "No" else "OBS-DP"
        relations = [["modify", str(index + 1)]] if index < len(words) else []
        position = {"start_ix": index - 1, "end_ix": index - 1}
        entities[str(index)] = {"tokens": word, "label": label, "relations": relations, **position}
    return {"text": text, "entities": entities}


class Graphs(TextReader[dict[str, Any]]):
    name, revision = "words", "1"

    def read_batch(self, texts: list[str]) -> list[dict[str, Any]]:
        return [annotation(text) for text in texts]


class Vectors(TextReader[dict[str, Any]]):
    """Letter counts as CLS vectors."""

    name, revision = "letters", "1"

    def read_batch(self, texts: list[str]) -> list[dict[str, Any]]:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return [{"classes": [0] * 14, "cls": np.array([float(text.count(c)) for c in letters])} for text in texts]


class Labels(TextReader[dict[str, Any]]):
    name, revision = "rules", "1"

    def read_batch(self, texts: list[str]) -> list[dict[str, Any]]:
        return [{"classes": [0] * 14, "cls": None} for _ in texts]


@pytest.fixture(scope="module")
def bertscore(tmp_path_factory: pytest.TempPathFactory) -> BertScore:
    folder = tiny_encoder(tmp_path_factory.mktemp("encoder"), "roberta")
    return BertScore(BertScoreReader(str(folder), layer=2, device="cpu"), baseline=(0.5, 0.5, 0.5))


def scorer(bertscore: BertScore, **settings: Any) -> RadCliQ:
    return RadCliQ(Graphs(), Vectors(), bertscore, **settings)


# The linear model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_published_linear_cases(golden: dict[str, Any], version: str) -> None:
    cases = golden["radcliq_linear"]
    assert len(cases) >= 3
    features = np.array([case["inputs"]["features"] for case in cases])
    expected = [case["expected"][version] for case in cases]
    assert radcliq_from_components(features, version) == pytest.approx(expected, abs=1e-9, rel=0)
    assert float(radcliq_from_components(features[0], version)) == pytest.approx(expected[0], abs=1e-9, rel=0)


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_coefficients_are_the_published_ones(golden: dict[str, Any], version: str) -> None:
    published = golden["parameters"][version]
    assert tuple(published["cols"]) == COMPONENTS
    for features in np.eye(4):
        z = (features - np.array(published["mean"])) / np.array(published["scale"])
        expected = float(z @ np.array(published["coef"]) + published["intercept"])
        assert float(radcliq_from_components(features, version)) == pytest.approx(expected, abs=1e-12)


def test_sign(golden: dict[str, Any]) -> None:
    """radcliq-sign (jbdel/RadEval#5): equal one-entity reports are negative, lower is better, 1/mean is no order."""
    raw = radcliq_from_components(np.array([[0.5, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]))
    assert raw == pytest.approx([-0.81808, -1.44069, 2.45014], abs=1e-5)
    assert 1 / raw[0] == pytest.approx(-1.22237, abs=1e-5)
    published = golden["radcliq_v1_reciprocal"][0]
    assert published["inputs"]["refs"] == published["inputs"]["hyps"]
    assert 1 / raw[0] == pytest.approx(published["expected"]["value"], abs=1e-5)
    mixed = np.mean([-1.4407, 1.8215])
    assert mixed > raw[1] and 1 / mixed > 1 / raw[1]  # worse raw, yet the larger reciprocal


def test_better_components_never_raise_v1() -> None:
    rng = np.random.default_rng(0)
    components = rng.random((50, 4))
    for column in range(3):
        better = components.copy()
        better[:, column] += 0.1
        assert (radcliq_from_components(better) < radcliq_from_components(components)).all()


@pytest.mark.parametrize(
    ("components", "message"),
    [
        (
            np.zeros((2, 3)),
            r"bertscore, semb_score, bleu_score, but the array has the shape \(2, 3\)",
        ),
        (np.array([[0, 0, 0, 0], [0, 0, np.nan, 0]]), "Study 1 has no usable semb_score"),
        (np.array([0, np.inf, 0, 0]), "Study 0 has no usable bertscore"),
    ],
)
def test_missing_component_is_named(components: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        radcliq_from_components(components)


# Components ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FAST_BLEU["cases"])
def test_sentence_bleu_equals_fast_bleu(case: tuple[str, str, float]) -> None:
    report, reference, expected = case
    assert sentence_bleu_2(report.split(), reference.split()) == pytest.approx(expected, abs=1e-12)


def test_sentence_bleu_corners() -> None:
    assert sentence_bleu_2([], ["a"]) == sentence_bleu_2(["a"], []) == sentence_bleu_2([], []) == 0.0
    assert sentence_bleu_2(["b"], ["a"]) == 0.0
    assert sentence_bleu_2(["a"], ["a"]) == pytest.approx(np.sqrt(0.1))  # one word has no bigram


def test_bleu_tokens() -> None:
    assert bleu_tokens("The heart.  2.5 cm\nNo") == ["the", "heart", ".", "2", ".5", "cm\nno"]


def test_components_by_hand(bertscore: BertScore) -> None:
    radcliq = scorer(bertscore)
    components = radcliq.components(REPORTS, REFERENCES)
    assert components.shape == (4, 4)
    # "Small effusion." against "small effusion.": case matters to the graph, one entity of two, no common relation
    assert components[:2, 0].tolist() == [0.25, 1.0]
    assert components[2, 0] == 0.0
    # five of six words, three of five relations
    assert components[3, 0] == pytest.approx((5 / 6 + 3 / 5) / 2)
    assert components[:, 1] == pytest.approx(bertscore.per_study(REPORTS, REFERENCES)[:, 2])
    assert components[1, 2] == pytest.approx(1.0) and components[2, 2] == 0.0
    pairs = [(bleu_tokens(a), bleu_tokens(b)) for a, b in zip(REPORTS, REFERENCES, strict=True)]
    assert components[:, 3] == pytest.approx([sentence_bleu_2(*pair) for pair in pairs])


@pytest.mark.parametrize("name", COMPONENTS)
def test_one_component_alone_reads_with_its_own_network(name: str, bertscore: BertScore) -> None:
    radcliq = scorer(bertscore)
    expected = radcliq.compute(REPORTS, REFERENCES, per_sample=True)["per_sample"][f"radcliq_{name}"]
    narrow = scorer(bertscore)
    used = {"radgraph_combined": "radgraph", "semb_score": "chexbert", "bertscore": "bertscore"}.get(name)
    for other in {"radgraph", "chexbert", "bertscore"} - {used}:
        setattr(narrow, other, None)  # to use it is an error
    output = narrow.only(f"radcliq_{name}").score(REPORTS, REFERENCES)
    assert output.per_study() == {f"radcliq_{name}": pytest.approx(expected)}
    assert radcliq.only("radcliq_v1") is radcliq


def test_equal_reports_without_relations_get_half(bertscore: BertScore) -> None:
    assert scorer(bertscore).components(["Cardiomegaly."], ["Cardiomegaly."])[0, 0] == 0.5


def test_other_bleu(bertscore: BertScore) -> None:
    radeval = scorer(bertscore, bleu="pycocoevalcap", version="v0")
    expected = bleu_statistics([text.split() for text in REPORTS], [text.split() for text in REFERENCES])
    assert radeval.components(REPORTS, REFERENCES)[:, 3] == pytest.approx(expected.per_study()["bleu_2"])
    assert "RadEval" in radeval.protocol()["bleu_score"]["rule"]


# The scorer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_mean_of_the_linear_model(bertscore: BertScore, version: str) -> None:
    radcliq = scorer(bertscore, version=version)
    result = radcliq.compute(REPORTS, REFERENCES, per_sample=True)
    components = radcliq.components(REPORTS, REFERENCES)
    raw = radcliq_from_components(components, version)
    assert radcliq.primary_key == f"radcliq_{version}" and radcliq.higher_is_better is False
    assert result[radcliq.primary_key] == pytest.approx(raw.mean())
    assert result["per_sample"][radcliq.primary_key] == pytest.approx(raw)
    for index, name in enumerate(COMPONENTS):
        assert result[f"radcliq_{name}"] == pytest.approx(components[:, index].mean())
    assert result["radcliq_empty_predictions"] == 1
    assert not any("reciprocal" in name for name in result)
    assert "reciprocal" not in result["protocol"] and "lower is better" in result["protocol"]["direction"]


def test_reciprocal_only_on_request(bertscore: BertScore) -> None:
    result = scorer(bertscore, reciprocal=True).compute(REPORTS, REFERENCES, per_sample=True)
    assert result["radcliq_v1_reciprocal"] == pytest.approx(1 / result["radcliq_v1"])
    per_sample = result["per_sample"]
    assert per_sample["radcliq_v1_reciprocal"] == pytest.approx([1 / value for value in per_sample["radcliq_v1"]])
    assert "does not order" in result["protocol"]["reciprocal"]


def test_readers_are_shared_and_read_each_text_once(bertscore: BertScore, monkeypatch: pytest.MonkeyPatch) -> None:
    radcliq = scorer(bertscore)
    assert radcliq.readers() == [radcliq.radgraph, radcliq.chexbert, bertscore.reader]
    read: list[str] = []
    original = radcliq.radgraph.read_batch
    monkeypatch.setattr(radcliq.radgraph, "read_batch", lambda texts: read.extend(texts) or original(texts))
    radcliq.compute([*REPORTS, *REPORTS], [*REFERENCES, *REFERENCES])
    assert sorted(read) == sorted({*REPORTS, *REFERENCES})


def test_protocol_names_every_part(bertscore: BertScore) -> None:
    protocol = scorer(bertscore).protocol()
    assert protocol["radgraph_combined"]["reader"] == "words" and protocol["semb_score"]["reader"] == "letters"
    assert protocol["bertscore"]["idf"] is False and protocol["version"] == "v1"
    json.dumps(protocol)


def test_reader_without_vectors(bertscore: BertScore) -> None:
    with pytest.raises(ConfigError, match=r"'rules' gives no CLS vectors.*cannot stand in"):
        RadCliQ(Graphs(), Labels(), bertscore).compute(REPORTS, REFERENCES)


@pytest.mark.parametrize(
    ("settings", "message"), [({"version": "v2"}, "version 'v2'"), ({"bleu": "sacrebleu"}, "bleu is 'sacrebleu'")]
)
def test_unknown_settings(bertscore: BertScore, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scorer(bertscore, **settings)


def test_missing_reader(bertscore: BertScore) -> None:
    with pytest.raises(ConfigError, match="needs a chexbert reader, not NoneType"):
        RadCliQ(Graphs(), None, bertscore)  # type: ignore[arg-type]


def test_unequal_lists(bertscore: BertScore) -> None:
    with pytest.raises(DataError, match="1 predictions but 2 references"):
        scorer(bertscore).compute(["a"], ["a", "b"])
