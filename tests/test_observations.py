"""The vocabulary: names, states, codings and policies."""

from __future__ import annotations

import pytest

from rrg_hf.observations import (
    NO_FINDING,
    OBSERVATIONS,
    STATE_TO_CHEXBERT,
    STATE_TO_CHEXPERT,
    TOP_5,
    UNCERTAINTY_POLICIES,
    LabelState,
    apply_policy,
    empty_labels,
)


def test_names() -> None:
    assert len(OBSERVATIONS) == len(set(OBSERVATIONS)) == 14
    assert OBSERVATIONS[0] == "Enlarged Cardiomediastinum" and OBSERVATIONS[-1] == NO_FINDING
    assert set(TOP_5) == {"Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion"}
    assert list(empty_labels()) == list(OBSERVATIONS)


def test_codings_cover_every_state_once() -> None:
    for coding in (STATE_TO_CHEXPERT, STATE_TO_CHEXBERT):
        assert set(coding) == set(LabelState)
        assert len(set(coding.values())) == 4


@pytest.mark.parametrize(
    ("policy", "uncertain"),
    [("uncertain_as_positive", 1), ("uncertain_as_negative", 0), ("uncertain_ignored", None)],
)
def test_policies(policy: str, uncertain: int | None) -> None:
    labels = {"Edema": "positive", "Fracture": LabelState.UNCERTAIN, "Pneumonia": "negative", "Atelectasis": None}
    targets = apply_policy(labels, policy)
    assert list(targets) == list(OBSERVATIONS)
    assert (targets["Edema"], targets["Fracture"], targets["Pneumonia"]) == (1, uncertain, 0)
    assert targets["Atelectasis"] is None  # nobody labelled it: no target under any policy
    assert apply_policy(empty_labels(), policy) == dict.fromkeys(OBSERVATIONS, 0)


def test_what_cannot_work_is_named() -> None:
    with pytest.raises(ValueError, match=r"'u-ones'.*uncertain_as_positive"):
        apply_policy({}, "u-ones")
    with pytest.raises(ValueError, match=r"Oedema.*14 names"):
        apply_policy({"Oedema": "positive"}, "uncertain_ignored")
    with pytest.raises(ValueError, match="maybe"):
        apply_policy({"Edema": "maybe"}, "uncertain_ignored")
    assert len(UNCERTAINTY_POLICIES) == 3
