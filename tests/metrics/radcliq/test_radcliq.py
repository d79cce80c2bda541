"""The evaluate module end to end, on tiny random networks in the prepared folders' layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest

import rrg_hf.metrics
from rrg_hf.errors import ConfigError
from rrg_hf.metrics import load, make_reward_fn
from rrg_hf.metrics.bertscore import BertScore, BertScoreReader
from rrg_hf.metrics.chexbert import load_chexbert_f1
from rrg_hf.metrics.radcliq import COMPONENTS, load_radcliq, radcliq_from_components
from rrg_hf.metrics.radgraph import load_radgraph_f1
from rrg_hf.metrics.shared import ScorerSettings, build_scorers

from ..tiny_encoders import tiny_encoder
from .tiny_networks import tiny_chexbert, tiny_radgraph

FOLDER = Path(rrg_hf.metrics.__file__).parent / "radcliq"
REFERENCES = [
    "The lungs are clear. No effusion.",
    "Mild cardiomegaly with edema.",
    "No acute process.",
    "clear",
    "心 ☃ normal heart size",
    "right upper lobe nodule . " * 40,
]
REPORTS = ["The lungs are clear.", "Mild cardiomegaly.", "No acute process.", "", "heart", "left lower lobe"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("networks")
    return {
        "radgraph_model": str(tiny_radgraph(root / "radgraph")),
        "chexbert_model": str(tiny_chexbert(root / "chexbert")),
        "bertscore_model": str(tiny_encoder(root, "roberta", layers=6)),
    }


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_EVALUATE_OFFLINE", "1")


def module(models: dict[str, str], folder: Path = FOLDER, **settings: Any) -> Any:
    return evaluate.load(str(folder), keep_in_memory=True, device="cpu", **models, **settings)


def test_components_are_those_of_the_metrics_themselves(models: dict[str, str]) -> None:
    result = module(models).compute(predictions=REPORTS, references=REFERENCES, per_sample=True)
    per_sample = result["per_sample"]
    radgraph = load_radgraph_f1("radgraph", model=models["radgraph_model"], device="cpu").score(REPORTS, REFERENCES)
    chexbert = load_chexbert_f1(model=models["chexbert_model"], device="cpu").score(REPORTS, REFERENCES)
    vectors = BertScoreReader(models["bertscore_model"], device="cpu")
    bertscore = BertScore(vectors, baseline="distilroberta-base").score(REPORTS, REFERENCES)
    assert per_sample["radcliq_radgraph_combined"] == pytest.approx(radgraph.per_study()["radgraph_combined"])
    assert per_sample["radcliq_radgraph_combined"][3] == 0.0  # an empty report
    assert per_sample["radcliq_semb_score"] == pytest.approx(chexbert.per_study()["chexbert_similarity"], abs=1e-6)
    assert per_sample["radcliq_bertscore"] == pytest.approx(bertscore.per_study()["bertscore_f1"], abs=1e-5)
    components = np.array([per_sample[f"radcliq_{name}"] for name in COMPONENTS]).T
    assert np.ptp(components, axis=0).min() > 0  # every network tells these reports apart
    assert per_sample["radcliq_v1"] == pytest.approx(radcliq_from_components(components))
    assert result["radcliq_v1"] == pytest.approx(np.mean(per_sample["radcliq_v1"]))


def test_equal_reports_are_best(models: dict[str, str]) -> None:
    scores = module(models).compute(predictions=REFERENCES, references=REFERENCES, per_sample=True)["per_sample"]
    worse = module(models).compute(predictions=REPORTS, references=REFERENCES, per_sample=True)["per_sample"]
    for equal, other in zip(scores["radcliq_v1"], worse["radcliq_v1"], strict=True):
        assert equal <= other + 1e-5
    assert all(value == pytest.approx(1, abs=1e-5) for value in scores["radcliq_semb_score"])


def test_batch_size_does_not_matter(models: dict[str, str]) -> None:
    results = [
        module(models, batch_size=size, version="v0").compute(
            predictions=REPORTS, references=REFERENCES, per_sample=True
        )
        for size in (1, 64)
    ]
    one, many = (result["per_sample"] for result in results)
    assert one["radcliq_radgraph_combined"] == many["radcliq_radgraph_combined"]
    assert one["radcliq_v0"] == pytest.approx(many["radcliq_v0"], abs=1e-4)


def test_module_has_direction_and_protocol(models: dict[str, str], tmp_path: Path) -> None:
    loaded = module(models, reciprocal=True, cache_dir=str(tmp_path))
    assert loaded.primary_key == "radcliq_v1" and loaded.higher_is_better is False
    result = loaded.compute(predictions=REPORTS, references=REFERENCES)
    assert result["radcliq_v1_reciprocal"] == pytest.approx(1 / result["radcliq_v1"])
    text = json.dumps(result["protocol"])
    assert "lower is better" in text and "reciprocal" in text and str(tmp_path.parent) not in text
    assert list(tmp_path.rglob("*.sqlite"))  # readings of references, for the next run


def test_loads_from_a_copy_and_combines(models: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "radcliq")
    both = evaluate.combine([module(models, tmp_path / "radcliq"), module(models, version="v0")])
    result = both.compute(predictions=REPORTS, references=REFERENCES)
    assert result["radcliq_v1"] < 12 and result["radcliq_v0"] < 25
    # components have one name in both, so evaluate numbers the modules
    assert result["radcliq_0_radcliq_bertscore"] == pytest.approx(result["radcliq_1_radcliq_bertscore"])


def test_shared_readers_give_the_same_scores(models: dict[str, str]) -> None:
    options = {
        "radcliq": models,
        "chexbert": {"model": models["chexbert_model"]},
    }
    scorers = build_scorers(["chexbert", "radcliq"], ScorerSettings(options=options, device="cpu"))
    assert scorers["radcliq"].readers()[1] is scorers["chexbert"].readers()[0]
    alone = load_radcliq(**models, device="cpu").compute(REPORTS, REFERENCES)
    assert scorers["radcliq"].compute(REPORTS, REFERENCES)["radcliq_v1"] == pytest.approx(alone["radcliq_v1"])


def test_as_a_reward_lower_is_turned_round(models: dict[str, str]) -> None:
    scorer = load_radcliq(**models, device="cpu")
    reward = make_reward_fn(scorer)
    values = reward(completions=REPORTS, reference=REFERENCES)
    raw = scorer.compute(REPORTS, REFERENCES, per_sample=True)["per_sample"]["radcliq_v1"]
    assert values == pytest.approx([-value for value in raw])


def test_unprepared_weights_say_what_to_run(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RRG_HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="rrg metrics prepare radgraph"):
        load("radcliq", device="cpu")
    with pytest.raises(ConfigError, match="rrg metrics prepare chexbert"):
        load("radcliq", radgraph_model=models["radgraph_model"], device="cpu")
    with pytest.raises(ConfigError, match="version 'v2'"):  # before any weights
        load("radcliq", version="v2")


def test_card_and_length() -> None:
    card = (FOLDER / "README.md").read_text()
    assert card.startswith("---\ntitle: radcliq\n")
    for heading in ("Description", "Inputs", "Output values", "Values from papers", "Limitations", "Citation"):
        assert f"# {heading}" in card
    assert "lower is better" in card
    assert len((FOLDER / "radcliq.py").read_text().splitlines()) < 200
