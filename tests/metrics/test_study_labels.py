"""Targets of the experts: from rules, CheXbert or the data set, under a policy, for data sets and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from rrg_hf.data.phantom import phantom_dataset
from rrg_hf.errors import ConfigError
from rrg_hf.metrics.study_labels import add_expert_labels, expert_targets, label_reader
from rrg_hf.modeling.chexbert.convert_chexbert import convert_chexbert
from rrg_hf.observations import OBSERVATIONS, UNCERTAINTY_POLICIES
from rrg_hf.text.rules import label_report
from tests.tiny_chexbert import make_checkpoint, make_tokenizer

TEXTS = ["There is cardiomegaly. No effusion.", "Possible pneumonia.", None, "Clear lungs."]


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return phantom_dataset(6, seed=3, split="train", size=64, masks=())


@pytest.mark.parametrize("policy", sorted(UNCERTAINTY_POLICIES))
def test_targets_follow_the_policy(policy: str) -> None:
    labels = label_report("Cardiomegaly. No pneumothorax. Possible edema.")
    targets = dict(zip(OBSERVATIONS, expert_targets(labels, OBSERVATIONS, policy), strict=True))
    uncertain = {"uncertain_as_positive": 1.0, "uncertain_as_negative": 0.0, "uncertain_ignored": -1.0}[policy]
    assert (targets["Cardiomegaly"], targets["Pneumothorax"], targets["Edema"]) == (1.0, 0.0, uncertain)
    assert expert_targets(None, ("Edema", "Fracture"), policy) == [-1.0, -1.0]


def test_rules_read_the_section(rows: Dataset) -> None:
    changed = rows.select(range(4)).map(lambda row, index: {"findings": TEXTS[index]}, with_indices=True)
    names = ("Pleural Effusion", "Cardiomegaly", "Pneumonia")
    done = add_expert_labels(changed, names, reader=label_reader("rules"))
    assert done["expert_labels"] == [[0, 1, 0], [0, 0, -1], [-1, -1, -1], [0, 0, 0]]
    positive = add_expert_labels(changed, names, reader=label_reader("rules"), policy="uncertain_as_positive")
    assert positive["expert_labels"][1] == [0, 0, 1]


def test_the_studies_own_labels(rows: Dataset) -> None:
    done = add_expert_labels(rows, OBSERVATIONS, reader=label_reader("study"))
    for row, targets in zip(rows, done["expert_labels"], strict=True):
        assert targets == expert_targets(row["labels"], OBSERVATIONS, "uncertain_ignored")
    blank = rows.map(lambda row: {"labels": dict.fromkeys(row["labels"])})
    assert add_expert_labels(blank, OBSERVATIONS, reader=None)["expert_labels"] == [[-1.0] * 14] * len(rows)


def test_a_stream_gets_the_same(rows: Dataset) -> None:
    for source in ("rules", "study"):
        reader = label_reader(source)
        whole = add_expert_labels(rows, OBSERVATIONS, reader=reader)["expert_labels"]
        stream = add_expert_labels(rows.to_iterable_dataset(), OBSERVATIONS, reader=reader)
        assert [row["expert_labels"] for row in stream] == whole


def test_chexbert_reads_once_and_keeps_what_it_read(rows: Dataset, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    folder = convert_chexbert(make_checkpoint(tmp_path / "chexbert.pth"), tokenizer, tmp_path / "chexbert")
    reader: Any = label_reader("chexbert", model=folder, cache_dir=tmp_path / "cache", device="cpu")
    first = add_expert_labels(rows, OBSERVATIONS, reader=reader)["expert_labels"]
    again: Any = label_reader("chexbert", model=folder, cache_dir=tmp_path / "cache", device="cpu")
    again.read_batch = lambda texts: pytest.fail("read again")
    assert add_expert_labels(rows, OBSERVATIONS, reader=again)["expert_labels"] == first
    assert {value for row in first for value in row} <= {0.0, 1.0, -1.0}


def test_a_column_made_earlier_is_kept(rows: Dataset) -> None:
    done = rows.add_column("expert_labels", [[1.0, -1.0]] * len(rows))
    assert add_expert_labels(done, ("Edema", "Fracture"), reader=None)["expert_labels"] == [[1.0, -1.0]] * len(rows)
    with pytest.raises(ConfigError, match="have 2 numbers, the model has 14"):
        add_expert_labels(done, OBSERVATIONS, reader=None)


def test_what_cannot_work(rows: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"knows the experts \['Scoliosis'\]"):
        add_expert_labels(rows, ("Edema", "Scoliosis"), reader=None)
    with pytest.raises(ConfigError, match="column 'labels', which the data set lacks"):
        add_expert_labels(rows.remove_columns("labels"), OBSERVATIONS, reader=None)
    with pytest.raises(ConfigError, match="choose one of rules, chexbert, study"):
        label_reader("radiologist")
    with pytest.raises(ConfigError, match="goes with label_source 'chexbert'"):
        label_reader("rules", model="folder")
