"""What a phantom study shows: findings drawn from clinical scenarios, and their place in the chest.

The scenarios are the language prior that a report generator can fall for. In train, validation and test, findings
come in company (a large heart with edema and effusion), on their usual side, and the indication and the wording of
the report give the scenario away. In `test_shifted` each finding is as frequent as before, but independent of all
others; sides are mirrored, and the indication belongs to another scenario. Only the image helps there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...observations import OBSERVATIONS, LabelState
from .facts import DRAWABLE, OPTIONS, Fact

SHIFTED_SPLIT = "test_shifted"

# scenario -> (probability, findings and their probability within it)
SCENARIOS: dict[str, tuple[float, dict[str, float]]] = {
    "healthy": (0.25, {}),
    "heart failure": (
        0.16,
        {"Cardiomegaly": 0.80, "Edema": 0.80, "Pleural Effusion": 0.60, "Support Devices": 0.25},
    ),
    "infection": (
        0.16,
        {"Pneumonia": 0.65, "Consolidation": 0.60, "Lung Opacity": 0.50, "Pleural Effusion": 0.15},
    ),
    "trauma": (
        0.13,
        {"Fracture": 0.85, "Pneumothorax": 0.70, "Lung Opacity": 0.25, "Support Devices": 0.15},
    ),
    "after surgery": (
        0.13,
        {"Support Devices": 0.85, "Atelectasis": 0.75, "Enlarged Cardiomediastinum": 0.35, "Pleural Effusion": 0.25},
    ),
    "malignancy": (
        0.08,
        {"Lung Lesion": 0.90, "Enlarged Cardiomediastinum": 0.60, "Atelectasis": 0.25, "Pleural Effusion": 0.30},
    ),
    "dust exposure": (
        0.09,
        {"Pleural Other": 0.95, "Lung Lesion": 0.45, "Lung Opacity": 0.20},
    ),
}
# Every finding also turns up by chance in any scenario but "healthy".
BACKGROUND = 0.055

UNCERTAIN_SHARE = 0.08
NEW_SHARE, STABLE_SHARE = 0.06, 0.07

# Share of the patient's right side among one-sided findings, mirrored in test_shifted.
_RIGHT = {
    "Lung Opacity": 0.65,
    "Lung Lesion": 0.65,
    "Consolidation": 0.75,
    "Pneumonia": 0.70,
    "Atelectasis": 0.30,
    "Pneumothorax": 0.25,
    "Pleural Effusion": 0.75,
    "Pleural Other": 0.35,
    "Fracture": 0.30,
}
_BILATERAL = {
    "Lung Opacity": 0.12,
    "Consolidation": 0.08,
    "Pneumonia": 0.20,
    "Atelectasis": 0.20,
    "Pleural Effusion": 0.30,
    "Pleural Other": 0.20,
}
# Placing goes in this order: what can only be in one zone comes first.
_PLACING = (
    "Pleural Effusion",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Other",
    "Fracture",
    "Consolidation",
    "Pneumonia",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Cardiomegaly",
    "Enlarged Cardiomediastinum",
    "Support Devices",
)
_FIXED_ZONES = {
    "Pleural Effusion": ("lower",),
    "Atelectasis": ("lower",),
    "Pneumothorax": ("upper", "wall"),
    "Pleural Other": ("wall",),
    "Fracture": ("wall",),
}


@dataclass(frozen=True)
class Case:
    """What a study is about: its facts, the scenario that its words suggest, and whether wording follows it."""

    facts: tuple[Fact, ...]
    scenario: str
    stock_phrases: bool


def prevalence() -> dict[str, float]:
    """Probability of each drawable finding, the same in every split."""
    total = dict.fromkeys(DRAWABLE, 0.0)
    for name, (weight, table) in SCENARIOS.items():
        for finding in DRAWABLE:
            if name != "healthy":
                total[finding] += weight * (1.0 - (1.0 - table.get(finding, 0.0)) * (1.0 - BACKGROUND))
    return total


_NAMES = tuple(SCENARIOS)
_CUMULATIVE = np.cumsum([weight for weight, _ in SCENARIOS.values()])
_TABLE = {
    name: np.array([1.0 - (1.0 - table.get(finding, 0.0)) * (1.0 - BACKGROUND) for finding in DRAWABLE])
    for name, (_, table) in SCENARIOS.items()
}
_INDEPENDENT = np.array([prevalence()[finding] for finding in DRAWABLE]) / (1.0 - SCENARIOS["healthy"][0])


def sample_case(rng: np.random.Generator, split: str) -> Case:
    """Draw the findings of one study by the prior of its split."""
    scenario = _NAMES[int(np.searchsorted(_CUMULATIVE, rng.random() * _CUMULATIVE[-1], side="right"))]
    shifted = split == SHIFTED_SPLIT
    chances = _INDEPENDENT if shifted else _TABLE[scenario]
    present = rng.random(len(DRAWABLE)) < chances
    found = [name for name, yes in zip(DRAWABLE, present, strict=True) if yes and scenario != "healthy"]
    if shifted:
        others = [name for name in _NAMES if name != scenario]
        scenario = others[int(rng.integers(len(others)))]
    return Case(place(found, rng, mirrored=shifted), scenario, stock_phrases=not shifted)


def case_of(wanted: Sequence[str | Fact], rng: np.random.Generator) -> Case:
    """The case of exactly these findings. What a `Fact` leaves open, and all of a name, is drawn at random."""
    given = {item.observation: item for item in wanted if isinstance(item, Fact)}
    names = [item.observation if isinstance(item, Fact) else item for item in wanted]
    facts = place(names, rng, mirrored=False, given=given)
    return Case(facts, _NAMES[int(rng.integers(len(_NAMES)))], stock_phrases=False)


def place(
    names: Sequence[str], rng: np.random.Generator, *, mirrored: bool, given: Mapping[str, Fact] | None = None
) -> tuple[Fact, ...]:
    """Give each finding a side, zone, severity and kind so that they overlap as little as possible.

    Returns:
        Facts in the order of `OBSERVATIONS`.
    """
    given = given or {}
    taken: dict[tuple[str, str], float] = {}
    if "Edema" in names:
        taken[("right", "mid")] = taken[("left", "mid")] = 0.5
    facts: dict[str, Fact] = {}
    for name, fact in given.items():
        facts[name] = fact = _complete(fact, names, rng)
        for side in fact.sides:
            for zone in (fact.zone,) if fact.zone else _FIXED_ZONES.get(fact.observation, ()):
                taken[(side, zone)] = taken.get((side, zone), 0.0) + 1.0
    for name in _PLACING:
        if name in names and name not in given:
            facts[name] = _place_one(name, names, taken, rng, mirrored)
    return tuple(facts[name] for name in OBSERVATIONS if name in facts)


def _complete(fact: Fact, names: Sequence[str], rng: np.random.Generator) -> Fact:
    """A fact with what it leaves open drawn at random."""
    sides, zones, severities, kinds = OPTIONS[fact.observation]
    drawn = _place_one(fact.observation, names, {}, rng, False)
    severity = fact.severity
    if severities and severity is None:
        severity = "large" if fact.kind == "mass" else drawn.severity
        if fact.state is LabelState.UNCERTAIN:
            severity = severities[0]
    kind = fact.kind
    if kinds and kind is None:
        kind = _choose_kind(fact.observation, severity, rng.random())
    side = fact.side or (drawn.side if sides else None)
    zone = fact.zone or (drawn.zone if zones else None)
    return replace(fact, side=side, zone=zone, severity=severity, kind=kind)


def _place_one(
    name: str, names: Sequence[str], taken: dict[tuple[str, str], float], rng: np.random.Generator, mirrored: bool
) -> Fact:
    u = rng.random(8)
    state = LabelState.POSITIVE
    if name != "Support Devices" and u[0] < UNCERTAIN_SHARE:
        state = LabelState.UNCERTAIN
    change = None
    if state is LabelState.POSITIVE and u[1] < NEW_SHARE + STABLE_SHARE:
        change = "new" if u[1] < NEW_SHARE else "stable"
    side = zone = None
    if name in _RIGHT:
        side, zone = _choose_slot(name, names, taken, u, mirrored)
    scale = OPTIONS[name][2]
    severity = None
    if scale:
        severity = scale[0] if state is LabelState.UNCERTAIN else scale[int(u[5] * 3)]
    kind = _choose_kind(name, severity, u[6])
    return Fact(name, state=state, side=side, zone=zone, severity=severity, kind=kind, change=change)


def _choose_slot(
    name: str, names: Sequence[str], taken: dict[tuple[str, str], float], u: np.ndarray, mirrored: bool
) -> tuple[str, str | None]:
    right = 1.0 - _RIGHT[name] if mirrored else _RIGHT[name]
    sides = ["right", "left"] if u[2] < right else ["left", "right"]
    fixed = _FIXED_ZONES.get(name)
    zones: list[tuple[str, ...]] = [fixed] if fixed else [("upper",), ("mid",), ("lower",)]
    turn = int(u[3] * len(zones))
    zones = zones[turn:] + zones[:turn]
    both_at_bases = {"Pleural Effusion", "Atelectasis"} <= set(names)
    choices: list[tuple[str, tuple[str, ...]]] = []
    if u[4] < _BILATERAL.get(name, 0.0) and not (both_at_bases and fixed == ("lower",)):
        choices += [("bilateral", zone) for zone in zones]
    choices += (
        [(side, zone) for zone in zones for side in sides] if u[7] < 0.5 else [(s, z) for s in sides for z in zones]
    )

    def load(choice: tuple[str, tuple[str, ...]]) -> float:
        where = ("right", "left") if choice[0] == "bilateral" else (choice[0],)
        return max(taken.get((side, zone), 0.0) for side in where for zone in choice[1])

    side, zone = min(choices, key=load)
    for each in ("right", "left") if side == "bilateral" else (side,):
        for part in zone:
            taken[(each, part)] = taken.get((each, part), 0.0) + 1.0
    return side, None if fixed else zone[0]


def _choose_kind(name: str, severity: str | None, u: float) -> str | None:
    if name == "Lung Lesion":
        return "mass" if severity == "large" else "nodule"
    if name == "Pleural Other":
        return "plaque" if u < 0.5 else "thickening"
    if name == "Fracture":
        return "clavicle" if u < 0.4 else "ribs"
    if name == "Support Devices":
        kinds = ("pacemaker", "endotracheal tube", "central line", "sternal wires", "enteric tube")
        return kinds[int(np.searchsorted((0.30, 0.47, 0.64, 0.86), u))]
    return None
