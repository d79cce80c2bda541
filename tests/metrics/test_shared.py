from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.evaluation import report_statistics
from rrg_hf.evaluation.run import compare_reports, evaluate_reports
from rrg_hf.metrics.radgraph import RadGraphF1, RulesGraphReader
from rrg_hf.metrics.ratescore import RaTEScore
from rrg_hf.metrics.reading import ReadingCache
from rrg_hf.metrics.shared import CLINICAL_METRICS, ScorerSettings, build_scorers
from tests.metrics.radcliq.tiny_networks import tiny_chexbert, tiny_radgraph
from tests.metrics.tiny_encoders import tiny_encoder

RULES = {"chexbert": {"backend": "rules"}, "radgraph": {"backend": "rules"}, "ratescore": {"backend": "rules"}}
REFERENCES = {
    "a": "The lungs are clear. No pleural effusion.",
    "b": "Mild cardiomegaly with a small left pleural effusion.",
    "c": "Right lower lobe consolidation.",
    "d": "The lungs are clear. No pleural effusion.",
}
PREDICTIONS = {**REFERENCES, "b": "Small left pleural effusion.", "d": ""}
OTHER = dict.fromkeys(REFERENCES, "The lungs are clear.")


class CountingReader(RulesGraphReader):
    """Rules that count how often they read each text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.read: Counter[str] = Counter()

    def read_batch(self, texts: list[str]) -> list[dict[str, Any]]:
        self.read.update(texts)
        return super().read_batch(texts)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("networks")
    return {
        "chexbert": tiny_chexbert(folder / "chexbert"),
        "radgraph": tiny_radgraph(folder / "radgraph"),
        "bertscore": tiny_encoder(folder, "roberta", layers=6),
    }


@pytest.fixture
def options(networks: dict[str, Path]) -> dict[str, dict[str, Any]]:
    return {
        "chexbert": {"model": str(networks["chexbert"])},
        "radgraph": {"backend": "radgraph", "model": str(networks["radgraph"])},
        "radcliq": {"bertscore_model": str(networks["bertscore"])},
    }


@pytest.mark.parametrize("chunk", [5000, 2])
def test_every_text_is_read_once_for_all_metrics_and_both_systems(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(report_statistics, "CHUNK", chunk)
    reader = CountingReader()
    scorers = {"radgraph": RadGraphF1(reader), "bertscore": RadGraphF1(reader, lowercase=False)}
    steps: Counter[str] = Counter()
    totals: dict[str, int] = {}

    def progress(stage: str, done: int, total: int) -> None:
        steps[stage] += done
        totals[stage] = total

    with pytest.raises(ConfigError, match="has none for"):
        evaluate_reports(PREDICTIONS, REFERENCES, metrics=["green"], scorers=scorers)
    del scorers["bertscore"]
    evaluate_reports(
        PREDICTIONS, REFERENCES, metrics=["radgraph"], scorers=scorers, versus=OTHER, bootstrap=20, progress=progress
    )
    texts = {*REFERENCES.values(), *PREDICTIONS.values(), *OTHER.values()}
    assert reader.read == dict.fromkeys(texts, 1)
    assert steps == totals and totals["rules reads"] >= len(texts)


def test_readers_are_shared(options: dict[str, dict[str, Any]]) -> None:
    scorers = build_scorers(["chexbert", "radgraph", "radcliq"], ScorerSettings(options, device="cpu"))
    chexbert, radgraph, radcliq = scorers.values()
    assert list(scorers) == ["chexbert", "radgraph", "radcliq"]
    assert radcliq.readers()[:2] == [radgraph.readers()[0], chexbert.readers()[0]]
    other = build_scorers(
        ["radgraph", "radcliq"],
        ScorerSettings({**options, "radgraph": {"backend": "rules"}, "radcliq": {
            **options["radcliq"], "radgraph_model": options["radgraph"]["model"],
            "chexbert_model": options["chexbert"]["model"], "version": "v0"}}),
    )  # fmt: skip
    assert other["radgraph"].readers()[0] is not other["radcliq"].readers()[0]
    assert other["radcliq"].primary_key == "radcliq_v0"


def test_a_model_without_backend_says_itself_what_it_is(options: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """The default backend is XL, but a folder with RadGraph v1 is RadGraph v1."""
    options["radgraph"].pop("backend")
    scorers = build_scorers(["chexbert", "radgraph", "radcliq"], ScorerSettings(options, device="cpu"))
    reader = scorers["radgraph"].readers()[0]
    assert reader.name == "radgraph" and scorers["radcliq"].readers()[0] is reader
    result = evaluate_reports(
        PREDICTIONS, REFERENCES, metrics=["radgraph"], options={"radgraph": options["radgraph"]}, bootstrap=0
    )
    assert result.protocol.scorers["radgraph"]["backend"] == "radgraph"
    options["radgraph"]["backend"] = "radgraph-xl"
    with pytest.raises(ConfigError, match="holds 'radgraph', not 'radgraph-xl'"):
        build_scorers(["radgraph"], ScorerSettings({"radgraph": options["radgraph"]}, device="cpu"))


def test_another_network_of_radgraph_is_not_radcliqs(
    options: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rrg_hf.modeling.radgraph import RadGraphConfig

    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path / "home"))
    folder = Path(shutil.copytree(options["radgraph"]["model"], tmp_path / "xl"))
    config = RadGraphConfig.from_pretrained(folder)
    config.namespace = "radgraph-xl"
    config.save_pretrained(folder)
    options["radgraph"] = {"model": str(folder)}
    with pytest.raises(ConfigError, match="rrg metrics prepare radgraph;"):
        build_scorers(["radgraph", "radcliq"], ScorerSettings(options, device="cpu"))


def test_networks_through_the_evaluation(options: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "metrics": ["chexbert", "radgraph", "radcliq", "rules", "nlg"],
        "options": options,
        "device": "cpu",
        "bootstrap": 50,
    }
    result = evaluate_reports(PREDICTIONS, REFERENCES, versus=OTHER, cache_dir=tmp_path / "cache", **settings)
    expected = {
        "chexbert_micro_f1",
        "chexbert_similarity",
        "radgraph_partial",
        "radcliq_v1",
        "rules_micro_f1",
        "bleu_4",
    }
    assert expected <= set(result.scores)
    score = result.scores["radcliq_v1"]
    assert score["low"] <= score["value"] <= score["high"]
    assert result.comparison["scores"]["radcliq_v1"]["p_permutation"] <= 1
    row = result.per_sample[1]
    assert {"chexbert_f1", "chexbert_missed", "chexbert_similarity", "radgraph_simple", "radcliq_v1"} <= set(row)
    protocol = result.protocol
    assert set(protocol.scorers) == {"chexbert", "radgraph", "radcliq"}
    assert protocol.scorers["chexbert"]["revision"].startswith("sha256:")
    assert {"torch", "transformers"} <= set(protocol.versions)
    assert protocol.labeller == "rules" and set(result.more_observations) == {"chexbert"}
    assert result.more_observations["chexbert"]["Edema"]["evaluated"] == 4
    # references come from the cache now; the numbers stay, whatever the batch
    assert list((tmp_path / "cache").glob("*.sqlite"))
    again = evaluate_reports(
        PREDICTIONS, REFERENCES, versus=OTHER, cache_dir=tmp_path / "cache", batch_size=1, **settings
    )
    for name, value in result.scores.items():
        assert again.scores[name]["value"] == pytest.approx(value["value"], abs=1e-5), name
    alone = evaluate_reports(PREDICTIONS, REFERENCES, **{**settings, "metrics": ["chexbert"], "options": {
        "chexbert": options["chexbert"]}})  # fmt: skip
    assert alone.protocol.labeller == "chexbert" and alone.protocol.labeller_version.startswith("chexbert sha256:")
    assert alone.observations == result.more_observations["chexbert"]
    compared = compare_reports(OTHER, PREDICTIONS, REFERENCES, resamples=50, **{
        name: value for name, value in settings.items() if name != "bootstrap"})  # fmt: skip
    assert compared["radgraph_partial"].to_dict() == pytest.approx(
        result.comparison["scores"]["radgraph_partial"], abs=1e-6
    )


def test_without_networks_no_library_of_theirs_is_named() -> None:
    result = evaluate_reports(
        PREDICTIONS, REFERENCES, metrics=["chexbert", "radgraph", "ratescore"], options=RULES, bootstrap=0
    )
    assert "torch" not in result.protocol.versions
    assert {"rules_micro_f1", "rules_radgraph_partial", "rules_ratescore"} <= set(result.scores)
    assert result.protocol.metrics == ["rules", "radgraph", "ratescore"]
    assert result.protocol.counts["rules_ratescore_without_entities"] == 1


def test_placeholders_reach_a_clinical_metric_only_on_request() -> None:
    references = {"a": "XXXX effusion. Heart is normal.", "b": "___ edema."}
    predictions = {"a": "effusion. Heart is normal.", "b": "edema."}
    settings: dict[str, Any] = {"metrics": ["ratescore"], "options": {"ratescore": {"backend": "rules"}}}
    clean = evaluate_reports(predictions, references, bootstrap=0, **settings)
    assert clean.value("rules_ratescore") == pytest.approx(1.0)
    raw = evaluate_reports(predictions, references, bootstrap=0, clinical_cleaning="none", **settings)
    assert raw.protocol.clinical_cleaning == "none" and clean.protocol.clinical_cleaning == "default"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bleu": {}}, "'bleu': no such metric"),
        ({"green": {}}, "'green' are given, but the metric is not requested"),
        ({"radgraph": {"lower": True}}, r"no setting \['lower'\]"),
        ({"radgraph": {"backend": "v3"}}, "no backend 'v3'"),
        ({"radgraph": {"backend": "rules", "model": "x"}}, "loads no network"),
        ({"radgraph": "rules"}, "not a mapping"),
        ("rules", "a mapping of metric to its settings"),
        ({"bertscore": {"model": "some/encoder"}}, "no published baseline for 'encoder'"),
    ],
)
def test_options_that_nobody_reads(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_reports(PREDICTIONS, REFERENCES, metrics=["bertscore", "radgraph"], options=options)


def test_unknown_metric_and_missing_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="Unknown metrics"):
        build_scorers(["nlg"])
    settings = ScorerSettings({"ratescore": {"sentences": "rrg_hf"}})
    for name in ("chexbert", "radgraph", "ratescore"):
        with pytest.raises(ConfigError, match=rf"rrg metrics prepare {name}"):
            build_scorers([name], settings)
    assert set(CLINICAL_METRICS) == {"chexbert", "radgraph", "ratescore", "radcliq", "green", "bertscore"}


def test_readers_of_one_name_do_not_mix_in_the_cache(tmp_path: Path) -> None:
    """Graphs and entities are both read by `rules`."""
    from rrg_hf.metrics.ratescore import RulesEntityReader

    cache = ReadingCache(tmp_path)
    texts = list(REFERENCES.values())
    RadGraphF1(RulesGraphReader(cache=cache)).score(texts, texts)
    fresh = RaTEScore(RulesEntityReader(cache=cache)).compute(texts, texts)
    again = RaTEScore(RulesEntityReader(cache=cache)).compute(texts, texts)
    assert fresh == again and fresh["rules_ratescore"] == pytest.approx(1.0)
