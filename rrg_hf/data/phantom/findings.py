"""Draws each observation. Every function takes one `Fact` and returns where it drew: one mask per side or object.

Looks that a reader (and a small network) must tell apart:
lung opacity = one hazy, ill-defined patch; consolidation = dense, filling a whole zone with sharp upper and lower
limits and dark air bronchograms; pneumonia = several small fluffy foci; atelectasis = linear bands at a raised
hemidiaphragm; edema = haze around both hila with short septal lines at the bases; lung lesion = sharp round shadow;
pleural effusion = meniscus over the costophrenic angle; pleural other = dense rind along the lateral chest wall;
pneumothorax = black rim without vessels outside a thin white line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...observations import LabelState
from .anatomy import LUNG_CENTRE, LUNG_HALF_WIDTH, SIGN, Anatomy, Array, Mask, bump, ramp, with_heart
from .drawing import Radiograph, Window, clavicle_shaft
from .facts import Fact

# Contrast of an uncertain finding, relative to a stated one.
FAINT = 0.6
# Cardiothoracic ratio and how much the upper mediastinum grows on each side, by severity. Normal: at most 0.47.
HEART_RATIO = {"mild": (0.53, 0.56), "moderate": (0.57, 0.605), "severe": (0.615, 0.66)}
POSSIBLE_HEART_RATIO = (0.505, 0.525)
WIDENING = {"mild": (0.034, 0.042), "moderate": (0.046, 0.056), "severe": (0.060, 0.072)}
RAISED_DOME = {"mild": 0.035, "moderate": 0.05, "severe": 0.065}

_LEVEL = {"small": 0, "mild": 0, "moderate": 1, "large": 2, "severe": 2, None: 1}


def level(fact: Fact) -> int:
    """Severity as 0, 1 or 2."""
    return _LEVEL[fact.severity]


def strength(fact: Fact) -> float:
    return FAINT if fact.state is LabelState.UNCERTAIN else 1.0


def shape_anatomy(anatomy: Anatomy, facts: Sequence[Fact], rng_of: Callable[[str], np.random.Generator]) -> Anatomy:
    """The patient's geometry with those findings that change it: large heart, wide mediastinum, raised diaphragm."""
    for fact in facts:
        if fact.observation == "Cardiomegaly":
            span = HEART_RATIO[fact.severity or "moderate"]
            if fact.state is LabelState.UNCERTAIN:
                span = POSSIBLE_HEART_RATIO
            anatomy = with_heart(anatomy, rng_of("Cardiomegaly shape").uniform(*span))
        elif fact.observation == "Enlarged Cardiomediastinum":
            growth = rng_of("Enlarged Cardiomediastinum shape").uniform(*WIDENING[fact.severity or "moderate"])
            anatomy = replace(anatomy, widening=growth * strength(fact))
        elif fact.observation == "Atelectasis":
            rise = RAISED_DOME[fact.severity or "moderate"] * strength(fact)
            dome = {side: y - (rise if side in fact.sides else 0.0) for side, y in anatomy.dome.items()}
            anatomy = replace(anatomy, dome=dome)
    return anatomy


def draw(image: Radiograph, fact: Fact, rng: np.random.Generator) -> list[Mask]:
    """Draw one fact.

    Args:
        image: the radiograph being drawn; its chest already has the geometry of `shape_anatomy`.
        fact: what to draw.
        rng: this finding's own stream, so that drawing another one changes nothing here.

    Returns:
        bool masks (size, size): one per side, or one per object for what has no side.
    """
    if fact.sides:
        return [_BY_SIDE[fact.observation](image, fact, side, rng) for side in fact.sides]
    return _WHOLE[fact.observation](image, fact, rng)


# --- heart, mediastinum, edema


def _cardiomegaly(image: Radiograph, fact: Fact, rng: np.random.Generator) -> list[Mask]:
    return [image.chest.mask("cardiac silhouette")]


def _wide_mediastinum(image: Radiograph, fact: Fact, rng: np.random.Generator) -> list[Mask]:
    chest = image.chest
    return [(chest.silhouette() > 0.5) & (chest.y < 0.49) & (chest.y > 0.12)]


def _edema(image: Radiograph, fact: Fact, rng: np.random.Generator) -> list[Mask]:
    chest = image.chest
    haze = (0.34, 0.46, 0.58)[level(fact)] * strength(fact)
    reach = 0.02 * level(fact)
    masks = []
    for side in ("right", "left"):
        at = chest.window(0.0, SIGN[side] * 0.38, 0.20, 0.74)
        sx, y = chest.sx(side, at), chest.y[at[0]]
        wing = np.square((sx - 0.105) / (0.15 + reach)) + np.square((y - 0.445 - 0.12 * (sx - 0.1)) / (0.16 + reach))
        grain = _grain(image, at, rng, 0.05)
        share = haze * np.square(np.clip(1.0 - wing * wing, 0.0, 1.0)) * (1.0 + 0.28 * grain)
        # septal lines: short, horizontal, reaching the pleura of the lower zones
        _, lateral = chest.lung_span(side)
        depth = lateral[at[0]] - sx
        rows = bump(_saw((y - 0.52) / 0.024), max(0.22, 0.9 * chest.pixel / 0.024))
        lines = (
            rows
            * ramp(0.055 - depth, 0.012)
            * ramp(depth - 0.004, 0.004)
            * ramp(y - 0.52, 0.01)
            * ramp(0.68 - y, 0.01)
        )
        image.fill(at, np.clip(share + (0.45 * strength(fact)) * lines, 0.0, 0.95))
        inside = ((wing < 0.75) | (lines > 0.3)) & (chest.lung(side)[at] > 0.5)
        masks.append(image.full(at, inside))
    return masks


# --- lungs


def _lung_opacity(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    cx, cy = _place(image, fact, side, rng, 0.015)
    radius = (0.075, 0.095, 0.115)[level(fact)] * rng.uniform(0.95, 1.05)
    at = chest.window(
        SIGN[side] * (cx - radius - 0.02), SIGN[side] * (cx + radius + 0.02), cy - 1.2 * radius, cy + 1.2 * radius
    )
    sx, y = chest.sx(side, at), chest.y[at[0]]
    distance = np.square((sx - cx) / radius) + np.square((y - cy) / (radius * rng.uniform(0.9, 1.1)))
    cloud = np.clip(1.0 - distance, 0.0, 1.0) ** 1.2
    image.fill(at, (0.62 * strength(fact)) * cloud)
    return image.full(at, (distance < 0.85) & (chest.lung(side)[at] > 0.3))


def _consolidation(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    zone = fact.zone or "lower"
    half = (0.050, 0.065, 0.080)[level(fact)]
    cy = {"upper": 0.255, "mid": 0.43, "lower": 0.60}[zone] + rng.uniform(-0.012, 0.012)
    at = chest.window(0.0, SIGN[side] * 0.40, cy - half - 0.05, cy + half + 0.05)
    sx, y = chest.sx(side, at), chest.y[at[0]]
    slope = rng.uniform(-0.15, 0.15)
    offset = y - cy - slope * (sx - 0.2)
    # one border is a fissure and sharp, the other one fades and waves
    edge = max(0.006, chest.pixel)
    wave = 0.010 * np.sin(sx * np.float32(38.0) + np.float32(rng.uniform(0, 6.28)))
    up = np.float32(1.0 if zone != "upper" else -1.0)
    fissure, fading = ramp(half + up * offset, edge), ramp(half - up * offset + wave, 0.022)
    slab = fissure * fading * ramp(sx - 0.05, 0.02)
    # air bronchograms: dark tubes that branch outwards from the hilum
    tubes = np.zeros_like(slab)
    for turn in (-0.45, 0.05, 0.5):
        line = offset - turn * (sx - 0.10) * (half / 0.10) - 0.006 * np.sin(sx * np.float32(60.0))
        tubes = np.maximum(tubes, ramp(max(0.0055, 0.75 * chest.pixel) - np.abs(line), max(0.004, 0.6 * chest.pixel)))
    tubes = tubes * ramp(sx - 0.08, 0.02) * ramp(0.29 - sx, 0.03)
    image.fill(at, (0.86 * strength(fact)) * slab * (1.0 - 0.55 * tubes))
    image.markings[at] *= 1.0 - 0.8 * slab
    return image.full(at, (slab > 0.5) & (chest.lung(side)[at] > 0.3) & (chest.silhouette()[at] < 0.7))


def _pneumonia(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    cx, cy = _place(image, fact, side, rng, 0.008)
    count = (6, 8, 10)[level(fact)]
    reach = (0.075, 0.09, 0.10)[level(fact)]
    at = chest.window(
        SIGN[side] * (cx - reach - 0.05), SIGN[side] * (cx + reach + 0.05), cy - reach - 0.05, cy + reach + 0.05
    )
    sx, y = chest.sx(side, at), chest.y[at[0]]
    free = np.ones_like(sx)
    start = rng.uniform(0, 2 * np.pi)
    for i in range(count):
        # a sunflower spiral keeps the foci apart
        angle, far = start + 2.4 * i, reach * np.sqrt((i + 0.4) / count)
        radius = rng.uniform(0.020, 0.042)
        fx, fy = cx + far * np.cos(angle), cy + 0.95 * far * np.sin(angle)
        squeeze = rng.uniform(0.75, 1.3)
        distance = np.square((sx - np.float32(fx)) * np.float32(squeeze)) + np.square(y - np.float32(fy))
        free *= 1.0 - rng.uniform(0.75, 0.95) * np.square(np.clip(1.0 - distance / radius**2, 0.0, 1.0))
    share = (1.0 - free) * (1.0 + 0.3 * _grain(image, at, rng, 0.03))
    image.fill(at, np.clip(strength(fact) * share, 0.0, 0.95))
    return image.full(at, (share > 0.15) & (chest.lung(side)[at] > 0.3))


def _lung_lesion(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    radius = (0.033, 0.043, 0.055)[level(fact)] * rng.uniform(0.95, 1.05)
    cx, cy = _place(image, fact, side, rng, 0.02)
    at = chest.window(
        SIGN[side] * (cx - 1.5 * radius), SIGN[side] * (cx + 1.5 * radius), cy - 1.5 * radius, cy + 1.5 * radius
    )
    sx, y = chest.sx(side, at), chest.y[at[0]]
    distance = np.sqrt(np.square(sx - cx) + np.square(y - cy))
    disc = ramp(radius - distance, max(0.005, chest.pixel))
    depth = np.sqrt(np.clip(1.0 - np.square(distance / radius), 0.0, 1.0))
    image.fill(at, strength(fact) * disc * (0.84 + 0.14 * depth))
    image.add(at, (0.12 * strength(fact)) * disc * depth)
    return image.full(at, disc > 0.4)


def _atelectasis(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    top = chest.anatomy.dome[side]
    bands = 2 + level(fact)
    at = chest.window(SIGN[side] * 0.03, SIGN[side] * 0.38, top - 0.24, top + 0.18)
    sx, y = chest.sx(side, at), chest.y[at[0]]
    share = np.zeros_like(sx)
    half = max(0.0065, 0.8 * chest.pixel)
    middle, _ = chest.lung_middle(side, top - 0.06)
    for i in range(bands):
        cy = top - 0.028 - 0.032 * i + rng.uniform(-0.004, 0.004)
        slope = rng.uniform(-0.14, 0.06)
        cx = middle + rng.uniform(-0.02, 0.02)
        length = rng.uniform(0.08, 0.12)
        # a band is thickest in the middle and bends a little
        along = np.clip(np.abs(sx - cx) / length, 0.0, 1.0)
        axis = cy + slope * (sx - cx) + rng.uniform(-1.2, 1.2) * np.square(sx - cx)
        line = ramp(half * (1.15 - 0.4 * along) - np.abs(y - axis), 0.9 * half)
        share = np.maximum(share, line * (1.0 - np.square(np.square(along))))
    image.fill(at, (0.80 * strength(fact)) * share)
    image.add(at, (0.16 * strength(fact)) * share * chest.lung(side)[at])
    # the part of the lung that the raised hemidiaphragm took belongs to the finding
    rise = RAISED_DOME[fact.severity or "moderate"] * strength(fact)
    dome = chest.dome(side, sx)
    medial, lateral = chest.lung_span(side)
    lost = (y > dome) & (y < dome + rise) & (sx > medial[at[0]]) & (sx < lateral[at[0]])
    return image.full(at, (share > 0.3) | (lost & (chest.silhouette()[at] < 0.5)))


# --- pleura and chest wall


def _pneumothorax(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    gap = (0.055, 0.075, 0.098)[level(fact)] * rng.uniform(0.95, 1.05)
    at = chest.window(0.0, SIGN[side] * 0.40, 0.06, 0.72)
    sx, y = chest.sx(side, at), chest.y[at[0]]
    # the collapsed lung: the outline drawn in from apex and chest wall, touching it again towards the base
    base = 0.59 + 0.04 * level(fact)
    _, lateral = chest.lung_span(side)
    shrink = gap * np.sqrt(np.clip((base - y) / (base - 0.1), 0.0, 1.0))
    up = np.clip((0.60 - (y - 1.15 * gap)) / 0.5, 0.0, 1.0)
    half = LUNG_HALF_WIDTH * np.clip(1.0 - up**2.5, 0.0, 1.0) ** (1 / 2.3)
    line = LUNG_CENTRE - 0.068 * up * up + half - 0.6 * shrink
    line = np.where(y - 1.15 * gap < 0.1, -1.0, line)
    line = np.minimum(line, lateral[at[0]] - shrink)
    outside = ramp(sx - line, max(0.005, chest.pixel)) * (shrink > 1e-3)
    weight = outside * (chest.lung(side)[at]) * ramp(shrink - 0.006, 0.006)
    visible = 1.0 - (chest.silhouette()[at])
    s = strength(fact)
    image.markings[at] *= 1.0 - outside
    image.add(at, -(0.17 * s) * weight * visible)
    pleura = bump(sx - line, max(0.010, 1.6 * chest.pixel)) * ramp(shrink - 0.006, 0.006) * ramp(y - 0.1, 0.02)
    image.add(at, (0.38 * s) * pleura * chest.lung(side)[at] * visible)
    return image.full(at, ((weight > 0.4) | ((pleura > 0.4) & (chest.lung(side)[at] > 0.5))) & (visible > 0.5))


def _effusion(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    height = (0.055, 0.115, 0.20)[level(fact)] * rng.uniform(0.95, 1.05)
    at = chest.window(0.0, SIGN[side] * 0.41, 0.30, 0.95)
    sx, y = chest.sx(side, at), chest.y[at[0]]
    _, lateral = chest.lung_span(side)
    wall = np.clip(lateral[at[0]] - sx, 0.0, None)
    # the meniscus climbs along the lateral wall; its floor is the dome of the diaphragm
    surface = (
        chest.anatomy.dome[side] + 0.035 - height - (0.045 + 0.35 * height) * np.square(np.clip(1 - wall / 0.11, 0, 1))
    )
    fluid = ramp(y - surface, max(0.007, chest.pixel))
    image.fill(at, (0.97 if strength(fact) == 1.0 else 0.75) * fluid)
    image.add(at, 0.10 * strength(fact) * fluid * chest.lung(side)[at])
    image.markings[at] *= 1.0 - fluid
    # fluid also lies behind the heart, where it shows only faintly
    return image.full(at, (fluid > 0.5) & (chest.lung(side)[at] > 0.3))


def _pleural_other(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    thick = (0.034, 0.043, 0.053)[level(fact)]
    top, bottom = 0.25 + rng.uniform(-0.02, 0.02), (0.50, 0.54, 0.58)[level(fact)]
    at = chest.window(SIGN[side] * 0.15, SIGN[side] * 0.42, top - 0.04, bottom + 0.04)
    sx, y = chest.sx(side, at), chest.y[at[0]]
    _, lateral = chest.lung_span(side)
    depth = lateral[at[0]] - sx
    # an uneven inner border
    inner = thick * (1.0 + 0.28 * np.sin(y * np.float32(2 * np.pi / 0.085) + np.float32(rng.uniform(0, 6.28))))
    ends = ramp(y - top, 0.025) * ramp(bottom - y, 0.025)
    rind = ramp(inner - depth, max(0.006, chest.pixel)) * ramp(depth + 0.012, 0.006) * ends
    s = strength(fact)
    image.fill(at, (0.9 * s) * rind)
    image.add(at, (0.32 * s) * rind)
    if fact.kind == "plaque":
        flakes = rind * ramp(_grain(image, at, rng, 0.026) - 0.1, 0.5)
        image.add(at, (0.7 * s) * flakes)
    return image.full(at, rind > 0.4)


def _fracture(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    if fact.kind == "clavicle":
        return _clavicle_fracture(image, fact, side, rng)
    chest = image.chest
    a = chest.anatomy
    first = int(rng.integers(2, 4))
    at = chest.window(SIGN[side] * 0.14, SIGN[side] * 0.41, 0.14, 0.70)
    sx, y = chest.sx(side, at), chest.y[at[0]]
    _, lateral = chest.lung_span(side)
    phase = chest.rib_phase(side, sx, y)
    # each rib breaks a little further out or in than the one above
    drift = rng.uniform(0.014, 0.022) * (1.0 if rng.random() < 0.5 else -1.0)
    break_at = (
        0.265 + rng.uniform(-0.01, 0.01) + np.float32(drift) * np.clip(np.round(phase - 0.18) - first - 1, -1.5, 1.5)
    )
    ribs = (phase > first - 0.5) & (phase < first + 2.5)
    cage = ramp(lateral[at[0]] + 0.02 - sx, 0.012)
    outer = ramp(sx - break_at, 0.006)
    step = 0.36
    moved = np.clip(phase - step, first - 0.45, first + 2.45)
    old, new = image.rib_shape(phase), image.rib_shape(moved)
    s = strength(fact)
    # the outer ends drop by a third of the interspace, overlap the inner ones and show raw, dense margins
    delta = (0.17 * a.rib_contrast) * (new - old) * outer * cage * s
    overlap = bump(sx - break_at, 0.030) * np.maximum(old, new) * cage
    delta += (0.75 * s) * overlap
    reach = (phase > first - 0.3) & (phase < first + 2.75)
    image.add(at, np.where(reach, delta, 0.0).astype(np.float32))
    near = (ribs | reach) & (sx > break_at - 0.03) & (sx < lateral[at[0]] + 0.02)
    return image.full(at, near & (np.abs(delta) > 0.02))


def _clavicle_fracture(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator) -> Mask:
    chest = image.chest
    a = chest.anatomy
    at = chest.window(SIGN[side] * 0.10, SIGN[side] * 0.44, 0.02, 0.28)
    sx = chest.sx(side, at) - np.float32(SIGN[side]) * chest.front
    offset = chest.y[at[0]] - chest.clavicle_y(side, sx)
    break_at = 0.20 + rng.uniform(-0.02, 0.02)
    span = ramp(0.39 - sx, 0.02)
    drop = 0.042
    outer = ramp(sx - break_at, 0.005)
    near = ramp(0.0135 - np.abs(offset - drop), 0.006) * span * ramp(sx - break_at + 0.025, 0.005)
    old = clavicle_shaft(offset) * span * outer
    new = clavicle_shaft(offset - np.float32(drop)) * span * ramp(sx - break_at + 0.025, 0.005)
    overlap = bump(sx - break_at + 0.01, 0.035) * ramp(0.034 - np.abs(offset - 0.5 * drop), 0.008)
    image.add(at, strength(fact) * (a.rib_contrast * (new - old) + 0.65 * overlap))
    return image.full(at, (near > 0.3) | (overlap > 0.3) | (old > 0.1))


# --- devices


def _support_device(image: Radiograph, fact: Fact, rng: np.random.Generator) -> list[Mask]:
    return _DEVICES[fact.kind or "pacemaker"](image, rng)


def _pacemaker(image: Radiograph, rng: np.random.Generator) -> list[Mask]:
    cx, cy = 0.285 + rng.uniform(-0.02, 0.02), 0.235 + rng.uniform(-0.02, 0.02)
    chest = image.chest
    at = chest.window(cx - 0.07, cx + 0.07, cy - 0.07, cy + 0.07)
    x, y = chest.x[at] - cx, chest.y[at[0]] - cy
    box = (np.abs(x) / 0.043) ** 3 + (np.abs(y) / 0.037) ** 3
    can = ramp(1.0 - box, 0.25)
    image.add(at, 2.2 * can)
    mask = image.full(at, can > 0.5)
    tip = (0.055 + rng.uniform(-0.01, 0.01), 0.665)
    lead = [
        (cx - 0.02, cy - 0.03),
        (0.20, 0.165),
        (0.08, 0.185),
        (-0.02, 0.25),
        (-0.045, 0.38),
        (-0.045, 0.52),
        (0.0, 0.63),
        tip,
    ]
    return [mask | _wire(image, lead, 0.0065, 1.6)]


def _endotracheal_tube(image: Radiograph, rng: np.random.Generator) -> list[Mask]:
    end = 0.285 + rng.uniform(-0.015, 0.02)
    x = float(image.chest.front) - 0.006
    return [_wire(image, [(x + 0.004, -0.1), (x + 0.002, 0.1), (x, end)], 0.0090, 1.5)]


def _central_line(image: Radiograph, rng: np.random.Generator) -> list[Mask]:
    end = 0.44 + rng.uniform(-0.03, 0.03)
    return [_wire(image, [(-0.10, -0.06), (-0.085, 0.06), (-0.055, 0.17), (-0.042, 0.28), (-0.043, end)], 0.0070, 1.5)]


def _sternal_wires(image: Radiograph, rng: np.random.Generator) -> list[Mask]:
    chest = image.chest
    x0 = 1.6 * float(chest.front)
    mask = np.zeros((chest.size, chest.size), dtype=bool)
    for i in range(5):
        cy = 0.28 + 0.085 * i + rng.uniform(-0.005, 0.005)
        at = chest.window(x0 - 0.05, x0 + 0.05, cy - 0.05, cy + 0.05)
        radius = np.sqrt(np.square((chest.x[at] - x0) / 1.35) + np.square(chest.y[at[0]] - cy))
        loop = bump(radius - 0.020, max(0.010, 1.1 * chest.pixel))
        image.add(at, 2.0 * loop)
        mask |= image.full(at, loop > 0.3)
    return [mask]


def _enteric_tube(image: Radiograph, rng: np.random.Generator) -> list[Mask]:
    end = (0.16 + rng.uniform(-0.02, 0.02), 0.845)
    path = [(0.012, -0.1), (0.014, 0.2), (0.02, 0.5), (0.035, 0.70), (0.075, 0.79), end]
    return [_wire(image, path, 0.0070, 1.5)]


_DEVICES: dict[str, Callable[[Radiograph, np.random.Generator], list[Mask]]] = {
    "pacemaker": _pacemaker,
    "endotracheal tube": _endotracheal_tube,
    "central line": _central_line,
    "sternal wires": _sternal_wires,
    "enteric tube": _enteric_tube,
}


# --- strokes and placement


def _wire(image: Radiograph, points: Sequence[tuple[float, float]], half_width: float, density: float) -> Mask:
    """A smooth radiopaque line through points (x, y) of the body frame."""
    chest = image.chest
    path = np.asarray(points, dtype=np.float64)
    # y grows along every path but a pacemaker lead's first bend, so the curve is parametrised by its index
    knots = np.linspace(0.0, 1.0, len(path))
    fine = np.linspace(0.0, 1.0, 4 * len(path))
    curve = np.stack([np.interp(fine, knots, path[:, i]) for i in (0, 1)], axis=1)
    smooth = curve.copy()
    for _ in range(2):
        smooth[1:-1] = 0.25 * smooth[:-2] + 0.5 * smooth[1:-1] + 0.25 * smooth[2:]
    half = max(half_width, 0.7 * chest.pixel)
    stroke = np.zeros((chest.size, chest.size), dtype=np.float32)
    for (x0, y0), (x1, y1) in pairwise(smooth):
        at = chest.window(
            min(x0, x1) - 2 * half, max(x0, x1) + 2 * half, min(y0, y1) - 2 * half, max(y0, y1) + 2 * half
        )
        dx, dy = x1 - x0, y1 - y0
        length = dx * dx + dy * dy
        if length < 1e-12:
            continue
        px, py = chest.x[at] - np.float32(x0), chest.y[at[0]] - np.float32(y0)
        along = np.clip((px * np.float32(dx) + py * np.float32(dy)) / np.float32(length), 0.0, 1.0)
        distance = np.hypot(px - along * np.float32(dx), py - along * np.float32(dy))
        stroke[at] = np.maximum(stroke[at], ramp(half - distance, 0.8 * half))
    image.density += np.float32(density) * stroke
    return stroke > 0.4


def _place(image: Radiograph, fact: Fact, side: str, rng: np.random.Generator, jitter: float) -> tuple[float, float]:
    """Centre (sx, y) of a focal finding in its zone."""
    cx, cy = image.chest.zone_centre(side, fact.zone or "mid")
    return cx + rng.uniform(-jitter, jitter), cy + rng.uniform(-jitter, jitter)


def _saw(value: Array) -> Array:
    """Distance to the nearest integer, signed."""
    return value - np.round(value)


def _grain(image: Radiograph, at: Window, rng: np.random.Generator, length: float) -> Array:
    """Smooth random texture in [-1, 1] with that grain length, on a window."""
    chest = image.chest
    kx, ky = rng.uniform(0.8, 1.2, 2) * (2 * np.pi / length)
    p = rng.uniform(0, 2 * np.pi, 4).astype(np.float32)
    x, y = chest.x[at], chest.y[at[0]]
    first = np.sin(np.float32(kx) * x + p[0] + 1.7 * np.sin(np.float32(0.61 * ky) * y + p[1]))
    second = np.sin(np.float32(ky) * y + p[2] + 1.7 * np.sin(np.float32(0.57 * kx) * x + p[3]))
    return first * second


_BY_SIDE: dict[str, Callable[[Radiograph, Fact, str, np.random.Generator], Mask]] = {
    "Lung Opacity": _lung_opacity,
    "Lung Lesion": _lung_lesion,
    "Consolidation": _consolidation,
    "Pneumonia": _pneumonia,
    "Atelectasis": _atelectasis,
    "Pneumothorax": _pneumothorax,
    "Pleural Effusion": _effusion,
    "Pleural Other": _pleural_other,
    "Fracture": _fracture,
}
_WHOLE: dict[str, Callable[[Radiograph, Fact, np.random.Generator], list[Mask]]] = {
    "Enlarged Cardiomediastinum": _wide_mediastinum,
    "Cardiomegaly": _cardiomegaly,
    "Edema": _edema,
    "Support Devices": _support_device,
}
