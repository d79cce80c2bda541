"""The one vocabulary: the 14 chest X-ray observations, their label states, and the uncertainty policies.

Source of the list and of the states: CheXpert (Irvin et al. 2019); the order is CheXbert's (Smit et al. 2020).
Address observations by name, never by a file's column order: chexpert-labeler, CheXbert and the MIMIC-CXR-JPG
csv files each use another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

OBSERVATIONS: tuple[str, ...] = (
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
    "No Finding",
)

NO_FINDING = "No Finding"

# The five that CheXpert's competition and most papers average over.
TOP_5: tuple[str, ...] = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")


class LabelState(str, Enum):
    """What a report says of one observation. Members equal their string values, as stored in a `Study` row."""

    POSITIVE = "positive"
    NEGATIVE = "negative"
    UNCERTAIN = "uncertain"
    NOT_MENTIONED = "not_mentioned"

    def __str__(self) -> str:
        return self.value


# CheXpert csv coding. NOT_MENTIONED is an empty cell there, hence None.
STATE_TO_CHEXPERT: dict[LabelState, int | None] = {
    LabelState.POSITIVE: 1,
    LabelState.NEGATIVE: 0,
    LabelState.UNCERTAIN: -1,
    LabelState.NOT_MENTIONED: None,
}
# CheXbert's head classes. Its "No Finding" head has the classes 0 and 1 only.
STATE_TO_CHEXBERT: dict[LabelState, int] = {
    LabelState.NOT_MENTIONED: 0,
    LabelState.POSITIVE: 1,
    LabelState.NEGATIVE: 2,
    LabelState.UNCERTAIN: 3,
}

# How a state becomes a binary target. "not_mentioned" counts as negative in all of them, as in the papers.
UNCERTAINTY_POLICIES: dict[str, dict[LabelState, int | None]] = {
    # U-Ones of CheXpert and the usual report-generation setting: positive or uncertain -> 1.
    "uncertain_as_positive": {
        LabelState.POSITIVE: 1,
        LabelState.UNCERTAIN: 1,
        LabelState.NEGATIVE: 0,
        LabelState.NOT_MENTIONED: 0,
    },
    # U-Zeros: only a plain positive counts.
    "uncertain_as_negative": {
        LabelState.POSITIVE: 1,
        LabelState.UNCERTAIN: 0,
        LabelState.NEGATIVE: 0,
        LabelState.NOT_MENTIONED: 0,
    },
    # U-Ignore: uncertain has no target (None) and is left out of sums and losses.
    "uncertain_ignored": {
        LabelState.POSITIVE: 1,
        LabelState.UNCERTAIN: None,
        LabelState.NEGATIVE: 0,
        LabelState.NOT_MENTIONED: 0,
    },
}
DEFAULT_UNCERTAINTY_POLICY = "uncertain_as_positive"

Labels = dict[str, LabelState]


def empty_labels() -> Labels:
    """All 14 observations, not mentioned."""
    return dict.fromkeys(OBSERVATIONS, LabelState.NOT_MENTIONED)


def apply_policy(labels: Mapping[str, LabelState | str | None], policy: str) -> dict[str, int | None]:
    """Binary targets of one report under a named uncertainty policy.

    Args:
        labels: observation name to state (a `LabelState`, its string value, or None for "no label at hand").
        policy: a key of `UNCERTAINTY_POLICIES`.

    Returns:
        Observation name to 1, 0 or None (no target), in the order of `OBSERVATIONS`.

    Raises:
        ValueError: unknown policy, observation or state; the message lists the known ones.
    """
    if policy not in UNCERTAINTY_POLICIES:
        raise ValueError(f"Unknown uncertainty policy {policy!r}. Use one of {sorted(UNCERTAINTY_POLICIES)}.")
    unknown = set(labels) - set(OBSERVATIONS)
    if unknown:
        raise ValueError(f"Unknown observations {sorted(unknown)}. The 14 names are {list(OBSERVATIONS)}.")
    table = UNCERTAINTY_POLICIES[policy]
    targets: dict[str, int | None] = {}
    for name in OBSERVATIONS:
        state = labels.get(name)
        targets[name] = None if state is None else table[LabelState(state)]
    return targets
