"""RadGraph's configuration refuses what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, ModernBertConfig

from rrg_hf.modeling.radgraph import RadGraphConfig


def test_defaults_are_radgraph_v1(tmp_path: Path) -> None:
    config = RadGraphConfig()
    assert isinstance(config.encoder_config, BertConfig)
    assert config.ner_labels == ["", "ANAT-DP", "OBS-DP", "OBS-DA", "OBS-U"]
    config.save_pretrained(tmp_path)
    assert RadGraphConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict()


def test_encoder_as_dict_or_object() -> None:
    config = RadGraphConfig(encoder_config={"model_type": "modernbert", "num_hidden_layers": 2})
    assert isinstance(config.encoder_config, ModernBertConfig) and config.encoder_config.num_hidden_layers == 2
    bert = BertConfig(hidden_size=24)
    config = RadGraphConfig(encoder_config=bert)
    assert config.encoder_config.hidden_size == 24 and config.encoder_config is not bert


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder_config": {"model_type": "gpt2"}}, "model_type 'gpt2'"),
        ({"ner_labels": ["ANAT-DP"]}, "null label"),
        ({"ner_labels": [""]}, "null label"),
        ({"ner_labels": ["", "A", ""]}, "null label"),
        ({"ner_labels": ["", "A", "A"]}, "a label twice"),
        ({"relation_labels": ["", "modify"]}, "no null label"),
        ({"relation_labels": []}, "no null label"),
        ({"max_span_width": 0}, "`max_span_width` must be a positive integer"),
        ({"max_span_width": 8, "num_width_embeddings": 5}, "only 5 rows"),
        ({"feature_size": True}, "`feature_size`"),
        ({"ner_hidden_sizes": []}, "one size per hidden layer"),
        ({"relation_hidden_sizes": [8, -1]}, "`relation_hidden_sizes` must be a positive integer"),
        ({"spans_per_word": 0}, "`spans_per_word`"),
        ({"max_length": 2}, "at least 3"),
        ({"preprocessing": "v3"}, "`preprocessing` must be one of"),
        ({"segments": "none"}, "`segments` must be one of"),
    ],
)
def test_values_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RadGraphConfig(**settings)
