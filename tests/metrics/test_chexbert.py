"""CheXbert's reader and scores, on a tiny random network converted from the published layout."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import classification_report
from transformers import AutoTokenizer

from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.metrics.chexbert import CheXbertF1, CheXbertReader, RulesLabelReader, load_chexbert_f1
from rrg_hf.metrics.reading import ReadingCache, TextReader
from rrg_hf.modeling.chexbert import CheXbertForReportLabeling, convert_chexbert
from rrg_hf.observations import OBSERVATIONS, TOP_5
from rrg_hf.text.rules import RULES_VERSION
from tests.tiny_chexbert import make_checkpoint, make_tokenizer


@pytest.fixture(scope="session")
def tiny_chexbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chexbert")
    tokenizer = make_tokenizer(folder / "tokenizer")
    checkpoint = make_checkpoint(folder / "chexbert.pth", len(AutoTokenizer.from_pretrained(tokenizer)))
    return convert_chexbert(checkpoint, tokenizer, folder / "converted")


def awkward_reports() -> list[str]:
    """Empty, one word, unicode, beyond 512 pieces, 10,000 characters, and many ordinary lengths."""
    draw = random.Random(3)
    words = ["the", "heart", "is", "normal", "small", "left", "effusion", "opacity", "edema", "in", "lobe", "with"]
    reports = [" ".join(draw.choices(words, k=draw.randint(1, 60))) + "." for _ in range(40)]
    return [
        "",
        " \n\t ",
        "Edema",
        "Größe unverändert – kein Erguss … 心脏 \u200b\ufeff🫀",
        "effusion " * 700,
        ("No pleural effusion. " * 500)[:10_000],
        *reports,
    ]


def test_labels_do_not_depend_on_batches(tiny_chexbert: Path) -> None:
    reports = awkward_reports()
    alone = CheXbertReader(tiny_chexbert, batch_size=1)(reports)
    together = CheXbertReader(tiny_chexbert, batch_size=64)(reports)
    assert [row["classes"] for row in alone] == [row["classes"] for row in together]
    for first, second in zip(alone, together, strict=True):
        np.testing.assert_allclose(first["cls"], second["cls"], atol=2e-4)
    assert len({tuple(row["classes"]) for row in alone}) > 10  # the network tells reports apart
    assert {value for row in alone for value in row["classes"][:13]} == {0, 1, 2, 3}
    assert {row["classes"][13] for row in alone} <= {0, 1}


def test_reading_equals_the_network_on_one_report(tiny_chexbert: Path) -> None:
    model = CheXbertForReportLabeling.from_pretrained(tiny_chexbert).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_chexbert)
    for report in ("Small left effusion.\n\nHeart  is normal.", "effusion " * 700, ""):
        ids = tokenizer(" ".join(report.split()))["input_ids"]
        if len(ids) > 512:
            ids = [*ids[:511], tokenizer.sep_token_id]
        with torch.no_grad():
            output = model(input_ids=torch.tensor([ids]))
        (reading,) = CheXbertReader(tiny_chexbert)([report])
        assert reading["classes"] == output.logits[0].argmax(-1).tolist()
        np.testing.assert_allclose(reading["cls"], output.cls[0].numpy(), atol=1e-4)


def test_each_distinct_text_is_read_once(tiny_chexbert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = CheXbertReader(tiny_chexbert)
    rows: list[int] = []
    forward = reader._model.forward
    monkeypatch.setattr(reader._model, "forward", lambda **kw: rows.append(len(kw["input_ids"])) or forward(**kw))
    scorer = CheXbertF1(reader)
    scorer.compute(["Edema.", "Edema.", "Normal heart."], ["Edema.", "Normal heart.", "Small effusion."])
    assert sum(rows) == 3


def test_references_are_kept_on_disk_without_their_text(
    tiny_chexbert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ReadingCache(tmp_path / "cache")
    first = CheXbertReader(tiny_chexbert, cache=cache)(["Small effusion."], persist=True)
    again = CheXbertReader(tiny_chexbert, cache=cache)
    monkeypatch.setattr(again, "_read", lambda encoded: pytest.fail("read again"))
    (kept,) = again(["Small effusion."], persist=True)
    assert kept["classes"] == first[0]["classes"]
    np.testing.assert_array_equal(kept["cls"], first[0]["cls"])
    assert all(b"effusion" not in path.read_bytes() for path in (tmp_path / "cache").iterdir())


class Fixed(TextReader):
    """Reads what it is told to; classes by text."""

    name = "chexbert"
    revision = "test"

    def __init__(self, classes: dict[str, list[int]], vectors: dict[str, list[float]] | None = None) -> None:
        super().__init__()
        self.classes = classes
        self.vectors = vectors

    def read_batch(self, texts: list[str]) -> list[dict]:
        vector = None if self.vectors is None else self.vectors
        return [
            {"classes": self.classes[text], "cls": None if vector is None else np.array(vector[text])}
            for text in texts
        ]


def random_classes(seed: int, count: int) -> dict[str, list[int]]:
    draw = random.Random(seed)
    return {f"{seed}-{i}": [*draw.choices(range(4), k=13), draw.randint(0, 1)] for i in range(count)}


@pytest.mark.parametrize(("policy", "positive"), [("uncertain_as_positive", {1, 3}), ("uncertain_as_negative", {1})])
def test_scores_are_scikit_learns(policy: str, positive: set[int]) -> None:
    predicted, truth = random_classes(1, 30), random_classes(2, 30)
    scorer = CheXbertF1(Fixed({**predicted, **truth}), policy=policy)
    result = scorer.compute(list(predicted), list(truth), per_sample=True)
    binary = [
        np.array([[int(value in positive) for value in row] for row in side.values()]) for side in (truth, predicted)
    ]
    for suffix, columns in (("", list(range(14))), ("_top5", [OBSERVATIONS.index(name) for name in TOP_5])):
        report = classification_report(binary[0][:, columns], binary[1][:, columns], output_dict=True, zero_division=0)
        for average in ("micro", "macro", "weighted", "samples"):
            for rate, name in (("precision", "precision"), ("recall", "recall"), ("f1-score", "f1")):
                key = f"chexbert_{average}_{name}{suffix}"
                assert result[key] == pytest.approx(report[f"{average} avg"][rate], abs=1e-12), key
    by_class = classification_report(
        binary[0], binary[1], output_dict=True, zero_division=0, target_names=OBSERVATIONS
    )
    for name in OBSERVATIONS:
        row = result["observations"][name]
        assert row["f1"] == pytest.approx(by_class[name]["f1-score"])
        assert row["support"] == by_class[name]["support"]
    same = (binary[0] == binary[1])[:, [OBSERVATIONS.index(name) for name in TOP_5]].all(axis=1)
    assert result["chexbert_exact_match_top5"] == pytest.approx(same.mean())
    assert result["per_sample"]["chexbert_exact_match_top5"] == same.astype(float).tolist()
    assert result["protocol"]["policy"] == policy and result["protocol"]["zero_division"] == 0.0
    assert len(result["per_sample"]["chexbert_missed"]) == 30


def test_missed_and_invented_name_the_errors() -> None:
    blank = [0] * 14
    effusion, edema = list(blank), list(blank)
    effusion[OBSERVATIONS.index("Pleural Effusion")] = 1
    edema[OBSERVATIONS.index("Edema")] = 3
    scorer = CheXbertF1(Fixed({"effusion": effusion, "edema": edema}))
    rows = scorer.compute(["edema"], ["effusion"], per_sample=True)["per_sample"]
    assert rows["chexbert_missed"] == [["Pleural Effusion"]]
    assert rows["chexbert_invented"] == [["Edema"]]


def test_similarity_is_the_cosine_of_cls() -> None:
    blank = [0] * 14
    vectors = {"a": [3.0, 4.0], "b": [4.0, 3.0], "zero": [0.0, 0.0]}
    scorer = CheXbertF1(Fixed(dict.fromkeys(vectors, blank), vectors))
    result = scorer.compute(["a", "a", "zero"], ["b", "a", "a"], per_sample=True)
    assert result["per_sample"]["chexbert_similarity"] == pytest.approx([24 / 25, 1.0, 0.0])
    assert result["chexbert_similarity"] == pytest.approx((24 / 25 + 1.0) / 3)


def test_identical_reports_score_one(tiny_chexbert: Path) -> None:
    reports = [text for text in awkward_reports() if text.strip()][:8]
    result = load_chexbert_f1(model=tiny_chexbert).compute(reports, reports)
    assert result["chexbert_exact_match"] == 1.0
    assert result["chexbert_similarity"] == pytest.approx(1.0)
    assert result["protocol"]["backend"] == "chexbert"
    assert result["protocol"]["revision"].startswith("sha256:")


def test_rules_never_pose_as_chexbert() -> None:
    scorer = load_chexbert_f1("rules")
    result = scorer.compute(["Small left pleural effusion."], ["Pleural effusion and cardiomegaly."], per_sample=True)
    text = repr({key: value for key, value in result.items() if key != "protocol"})
    assert "chexbert" not in text and "similarity" not in text
    assert scorer.primary_key == "rules_micro_f1"
    assert result["rules_micro_recall"] == 0.5
    assert result["per_sample"]["rules_missed"] == [["Cardiomegaly"]]
    assert result["protocol"]["backend"] == "rules" and result["protocol"]["revision"] == RULES_VERSION
    assert isinstance(scorer.reader, RulesLabelReader)


def test_an_empty_report_counts_and_misses_everything() -> None:
    result = load_chexbert_f1("rules").compute(["", "Edema."], ["Edema.", "Edema."])
    assert result["rules_micro_recall"] == 0.5


def test_uncertain_counts_as_the_named_policy_says() -> None:
    """Head classes ref=[1,3,2,0], hyp=[1,2,3,0] of one observation over four reports."""
    column = OBSERVATIONS.index("Edema")

    def reports(classes: list[int], name: str) -> dict[str, list[int]]:
        return {f"{name}{i}": [value if c == column else 0 for c in range(14)] for i, value in enumerate(classes)}

    truth, claimed = reports([1, 3, 2, 0], "ref"), reports([1, 2, 3, 0], "hyp")
    for policy, f1 in (("uncertain_as_negative", 1.0), ("uncertain_as_positive", 0.5)):
        result = CheXbertF1(Fixed({**truth, **claimed}), policy=policy).compute(list(claimed), list(truth))
        assert result["observations"]["Edema"]["f1"] == f1
        assert result["chexbert_micro_f1"] == f1
        assert result["protocol"]["policy"] == policy


def test_absent_classes_count_as_zero_division_says() -> None:
    """Perfect predictions of two reports, one observation present once: every average says what it averages."""
    classes = {"a": [0, 1, *[0] * 12], "b": [0] * 14}
    for zero, macro, samples in ((0.0, 1 / 14, 0.5), (1.0, 1.0, 1.0)):
        result = CheXbertF1(Fixed(classes), zero_division=zero).compute(list(classes), list(classes))
        assert result["chexbert_micro_f1"] == result["chexbert_weighted_f1"] == 1.0
        assert result["chexbert_macro_f1"] == pytest.approx(macro)
        assert result["chexbert_samples_f1"] == samples
        assert [row["support"] for row in result["observations"].values()] == [0, 1, *[0] * 12]
        assert result["protocol"]["zero_division"] == zero


def test_vectors_are_kept_only_when_asked_for(tiny_chexbert: Path, tmp_path: Path) -> None:
    reports = ["Small effusion.", "Edema.", ""]
    cache = ReadingCache(tmp_path)
    labels_only = CheXbertReader(tiny_chexbert, vectors=False, cache=cache)
    both = CheXbertReader(tiny_chexbert, cache=cache)
    for _ in range(2):  # the second time from the disk
        without, with_vectors = labels_only(reports, persist=True), both(reports, persist=True)
        assert [row["classes"] for row in without] == [row["classes"] for row in with_vectors]
        assert all(row["cls"] is None for row in without)
        assert all(row["cls"] is not None and row["cls"].shape == (128,) for row in with_vectors)
        labels_only, both = (CheXbertReader(tiny_chexbert, vectors=v, cache=cache) for v in (False, True))
    scorer = load_chexbert_f1(model=tiny_chexbert, similarity=False)
    result = scorer.compute(reports, reports)
    assert "chexbert_similarity" not in result and result["chexbert_exact_match"] == 1.0


def test_texts_beyond_the_memory_are_still_read_once(tiny_chexbert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = CheXbertReader(tiny_chexbert, memory=1)
    rows: list[int] = []
    read = reader._read
    monkeypatch.setattr(reader, "_read", lambda encoded: rows.append(len(encoded)) or read(encoded))
    CheXbertF1(reader).compute(["Edema.", "Heart.", "Tube."], ["Left.", "Right.", "Small."], per_sample=True)
    assert sum(rows) == 6


def test_passes_on_a_cpu_stay_small(tiny_chexbert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = CheXbertReader(tiny_chexbert, device="cpu")
    passes: list[list[int]] = []
    read = reader._read
    monkeypatch.setattr(reader, "_read", lambda encoded: passes.append([len(i) for i in encoded]) or read(encoded))
    reports = awkward_reports()
    reader(reports)
    assert sorted(length for rows in passes for length in rows) == sorted(reader.lengths(reports))
    assert all(len(rows) == 1 or len(rows) * max(rows) <= 512 for rows in passes)
    assert len(passes) < len(reports) / 2


def test_characters_that_are_none(tiny_chexbert: Path) -> None:
    """Half a surrogate pair, a NUL and words that look like the tokenizer's own marks are read, not an error."""
    reader = CheXbertReader(tiny_chexbert)
    halved, plain, *_ = reader(["heart \ud800 edema", "heart edema", "\x00", "[SEP] heart [PAD]"])
    assert halved["classes"] == plain["classes"]


def test_bad_settings_fail_before_anything_is_read(tiny_chexbert: Path, tmp_path: Path) -> None:
    for settings, message in (
        ({"backend": "bert"}, "Unknown backend 'bert'"),
        ({"backend": "rules", "model": tiny_chexbert}, "without a network"),
        ({"backend": "rules", "policy": "ones"}, "Unknown uncertainty policy"),
        ({"backend": "rules", "zero_division": 2}, "zero_division is 2"),
        ({"backend": "rules", "zero_division": "a"}, "zero_division is 'a'"),
        ({"model": tiny_chexbert, "dtype": "float8"}, "dtype is 'float8'"),
        ({"model": tiny_chexbert, "batch_size": 0}, "batch_size is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_chexbert_f1(**settings)
    with pytest.raises(CheckpointError, match="holds a None model"):
        load_chexbert_f1(model=tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="holds a 'bert' model"):
        load_chexbert_f1(model=tmp_path)
    scorer = load_chexbert_f1("rules")
    with pytest.raises(DataError, match="1 predictions but 2 references"):
        scorer.compute(["a"], ["a", "b"])
    with pytest.raises(DataError, match=r"predictions\[0\] is NoneType"):
        scorer.compute([None], ["a"])
    with pytest.raises(DataError, match="one str"):
        scorer.compute("a", ["a"])
