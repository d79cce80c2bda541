"""A `Fact`: one finding that is drawn in a phantom and stated in its report, and where each finding may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import DataError
from ...observations import NO_FINDING, OBSERVATIONS, LabelState

SIDE_CHOICES = ("right", "left", "bilateral")
ZONE_CHOICES = ("upper", "mid", "lower")
SIZES = ("small", "moderate", "large")
GRADES = ("mild", "moderate", "severe")

DRAWABLE: tuple[str, ...] = tuple(name for name in OBSERVATIONS if name != NO_FINDING)

# observation -> (sides, zones, severities, kinds); an empty tuple means that it has none of these.
_Options = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
OPTIONS: dict[str, _Options] = {
    "Enlarged Cardiomediastinum": ((), (), GRADES, ()),
    "Cardiomegaly": ((), (), GRADES, ()),
    "Lung Opacity": (SIDE_CHOICES, ZONE_CHOICES, SIZES, ()),
    "Lung Lesion": (("right", "left"), ZONE_CHOICES, SIZES, ("nodule", "mass")),
    "Edema": ((), (), GRADES, ()),
    "Consolidation": (SIDE_CHOICES, ZONE_CHOICES, SIZES, ()),
    "Pneumonia": (SIDE_CHOICES, ZONE_CHOICES, GRADES, ()),
    "Atelectasis": (SIDE_CHOICES, (), GRADES, ()),
    "Pneumothorax": (("right", "left"), (), SIZES, ()),
    "Pleural Effusion": (SIDE_CHOICES, (), SIZES, ()),
    "Pleural Other": (SIDE_CHOICES, (), GRADES, ("thickening", "plaque")),
    "Fracture": (("right", "left"), (), (), ("ribs", "clavicle")),
    "Support Devices": (
        (),
        (),
        (),
        ("pacemaker", "endotracheal tube", "central line", "sternal wires", "enteric tube"),
    ),
}


@dataclass(frozen=True)
class Fact:
    """One drawn finding.

    Args:
        observation: one of the 14 names but "No Finding".
        state: positive or uncertain. An uncertain finding is drawn fainter (`FAINT` of its contrast) and at its
            least severity unless you say otherwise, and the report hedges it.
        side: "right", "left", "bilateral" (the patient's), or None for what has no side.
        zone: "upper", "mid", "lower" lung zone, or None.
        severity: a word of `SIZES` or `GRADES`, or None.
        kind: which form it takes, e.g. "pacemaker" or "clavicle", or None.
        change: "new", "stable" or None, against a prior study. Stated in the report only: one image cannot show it.

    Raises:
        DataError: when the observation cannot have that side, zone, severity or kind.
    """

    observation: str
    state: LabelState = LabelState.POSITIVE
    side: str | None = None
    zone: str | None = None
    severity: str | None = None
    kind: str | None = None
    change: str | None = None

    def __post_init__(self) -> None:
        if self.observation not in OPTIONS:
            raise DataError(f"Cannot draw {self.observation!r}. Findings of the phantom: {list(DRAWABLE)}.")
        if self.state not in (LabelState.POSITIVE, LabelState.UNCERTAIN):
            raise DataError(f"A drawn {self.observation} is positive or uncertain, not {str(self.state)!r}.")
        sides, zones, severities, kinds = OPTIONS[self.observation]
        checks = (("side", self.side, sides), ("zone", self.zone, zones), ("severity", self.severity, severities))
        for name, value, allowed in (*checks, ("kind", self.kind, kinds), ("change", self.change, ("new", "stable"))):
            if value is not None and value not in allowed:
                choices = f"one of {list(allowed)}" if allowed else "None: it has none"
                raise DataError(f"{self.observation} cannot have {name}={value!r}. Use {choices}.")

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides to draw it on; empty for what has no side."""
        if self.side == "bilateral":
            return ("right", "left")
        return () if self.side is None else (self.side,)


def check_facts(facts: Sequence[Fact]) -> None:
    """Raises DataError when an observation is listed twice."""
    names = [fact.observation for fact in facts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"Each observation can be drawn once in a study, but these are listed twice: {twice}.")
