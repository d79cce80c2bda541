"""The phantom's chest: a sampled `Anatomy`, the pixel grid it is drawn on, and its parts as soft fields and masks.

Everything is analytic. Coordinates are those of the body frame, in units of the field of view: `x` = 0 at the
midline and grows towards the PATIENT'S LEFT, which a frontal radiograph shows on the image's right; `y` grows
downwards, with the lung apices near 0.1 and the domes of the diaphragm near 0.74. In formulas for one side, `sx` is
the distance from the midline towards that side.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# float32 throughout; numpy types the result of float32 with a Python float too loosely to say so here.
Array = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]

SIDES: tuple[str, str] = ("right", "left")
# Direction of each side along image columns: the patient's right lies on the image's left.
SIGN: dict[str, float] = {"right": -1.0, "left": 1.0}

# Limits of the lung zones and the centre that a finding is placed around.
ZONES: dict[str, tuple[float, float]] = {"upper": (0.0, 0.34), "mid": (0.34, 0.53), "lower": (0.53, 1.0)}
ZONE_CENTRES: dict[str, float] = {"upper": 0.265, "mid": 0.435, "lower": 0.605}

_LUNG_NODES = (
    "upper lung zone",
    "mid lung zone",
    "lower lung zone",
    "hilar structures",
    "apical zone",
    "costophrenic angle",
    "hemidiaphragm",
)
# The 32 anatomy nodes of SS-ACL (arXiv 2509.25963, Fig. 3), parents before children.
ANATOMY_NODES: tuple[str, ...] = (
    "chest",
    "lungs",
    "mediastinum",
    "skeletal structures",
    "abdomen",
    "right lung",
    "left lung",
    *(f"right {node}" for node in _LUNG_NODES),
    *(f"left {node}" for node in _LUNG_NODES),
    "trachea",
    "upper mediastinum",
    "aortic arch",
    "superior vena cava",
    "cardiac silhouette",
    "carina",
    "right atrium",
    "cavoatrial junction",
    "spine",
    "right clavicle",
    "left clavicle",
)
STOMACH_BUBBLE = "stomach bubble"

LUNG_CENTRE, LUNG_HALF_WIDTH = 0.208, 0.163
LUNG_MIDDLE, LUNG_APEX = 0.60, 0.10
CARINA = 0.365
HEART_TOP, HEART_WIDEST = 0.43, 0.68


@dataclass(frozen=True)
class Anatomy:
    """One phantom patient and how the exposure was made. Lengths are fractions of the field of view."""

    scale: float  # patient height in the field of view
    width: float  # breadth relative to height
    shift_x: float
    shift_y: float
    tilt: float  # in-plane tilt, as a shear
    rotation: float  # about the long axis, -1 to 1; moves what lies in front towards the patient's left
    tissue: float  # thickness of the soft tissue
    dome: dict[str, float]  # y of the top of each hemidiaphragm
    heart_right: float  # distance of the heart's right border from the midline
    heart_left: float
    mediastinum_right: float
    mediastinum_left: float
    widening: float  # of the upper mediastinum, on each side
    knob: float  # how far the aortic knob stands out
    rib_spacing: float
    rib_phase: float
    rib_contrast: float
    clavicle: dict[str, float]  # y of each medial end
    bubble: tuple[float, float, float, float] | None  # stomach bubble: centre x and y, half width, half height
    breast: float  # extra attenuation of breast tissue, 0 for none
    vessel_phase: dict[str, float]
    gain: float
    gamma: float
    noise: float
    texture: Array = field(repr=False, compare=False)  # (12, 12) coarse unevenness


def sample_anatomy(rng: np.random.Generator) -> Anatomy:
    """A normal adult chest with natural variation of body size, rotation, contours and exposure.

    The heart is at most 0.47 of the thorax wide, so that cardiomegaly (0.53 and more) is a matter of the image.
    """
    u = rng.uniform(-1.0, 1.0, 26)
    rotation = float(u[5])
    ratio = 0.425 + 0.04 * u[9]  # cardiothoracic ratio
    heart_width = ratio * 2 * (LUNG_CENTRE + LUNG_HALF_WIDTH)
    heart_right = (0.29 + 0.03 * u[10]) * heart_width
    middle, apart = 0.742 + 0.022 * float(u[7]), 0.011 - 0.006 * float(u[8])
    dome = {"right": middle - apart, "left": middle + apart}
    bubble = None
    if u[18] > -0.7:
        wide, high = 0.056 + 0.016 * float(u[20]), 0.036 + 0.010 * float(u[21])
        bubble = (0.185 + 0.03 * float(u[19]), dome["left"] + 0.018 + high, wide, high)
    return Anatomy(
        scale=1.0 + 0.045 * float(u[0]),
        width=1.0 + 0.05 * float(u[1]),
        shift_x=0.018 * float(u[2]),
        shift_y=0.02 * float(u[3]),
        tilt=0.035 * float(u[4]),
        rotation=rotation,
        tissue=1.0 + 0.14 * float(u[6]),
        dome=dome,
        heart_right=float(heart_right),
        heart_left=float(heart_width - heart_right),
        mediastinum_right=0.046 + 0.007 * float(u[11]),
        mediastinum_left=0.043 + 0.007 * float(u[12]),
        widening=0.0,
        knob=0.030 + 0.008 * float(u[13]),
        rib_spacing=0.077 + 0.005 * float(u[14]),
        rib_phase=float(u[15]) * 0.5,
        rib_contrast=1.0 + 0.25 * float(u[16]),
        clavicle={"right": 0.185 + 0.012 * float(u[17]), "left": 0.185 + 0.012 * float(u[22])},
        bubble=bubble,
        breast=max(0.0, float(rng.uniform(-0.14, 0.14))),
        vessel_phase={"right": float(u[23]) * np.pi, "left": float(u[24]) * np.pi},
        gain=1.0 + 0.10 * float(u[25]),
        gamma=float(np.exp(rng.uniform(-0.18, 0.18))),
        noise=float(rng.uniform(0.006, 0.019)),
        texture=rng.standard_normal((12, 12)).astype(np.float32),
    )


def with_heart(anatomy: Anatomy, ratio: float) -> Anatomy:
    """The same patient with a heart of that cardiothoracic ratio; it grows towards the left more than the right."""
    total = ratio * 2 * (LUNG_CENTRE + LUNG_HALF_WIDTH)
    growth = total - anatomy.heart_right - anatomy.heart_left
    return replace(
        anatomy,
        heart_right=anatomy.heart_right + 0.36 * growth,
        heart_left=anatomy.heart_left + 0.64 * growth,
    )


@lru_cache(maxsize=16)
def _pixel_centres(size: int) -> Array:
    centres = (np.arange(size, dtype=np.float32) + 0.5) / size
    centres.flags.writeable = False
    return centres


@lru_cache(maxsize=16)
def _upsampling(size: int, cells: int) -> Array:
    """(size, cells) matrix of linear interpolation: coarse noise to pixels by two products."""
    position = np.linspace(0, cells - 1, size, dtype=np.float32)[:, None]
    matrix = np.maximum(0.0, 1.0 - np.abs(position - np.arange(cells, dtype=np.float32)))
    matrix.flags.writeable = False
    return matrix


def upsample(cells: Array, size: int) -> Array:
    """(k, k) values spread linearly over (size, size) pixels."""
    matrix = _upsampling(size, cells.shape[0])
    return matrix @ cells @ matrix.T


def ramp(distance: Array, edge: float) -> Array:
    """Smooth step from 0 to 1 while a signed distance goes from -edge to +edge; exactly 0 and 1 beyond."""
    t = np.clip(distance * np.float32(0.5 / edge) + np.float32(0.5), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def bump(distance: Array, half_width: float) -> Array:
    """1 at distance 0, falling smoothly to exactly 0 at +-half_width."""
    t = np.minimum(np.square(distance * np.float32(1.0 / half_width)), 1.0)
    return np.square(1.0 - t)


class Chest:
    """An `Anatomy` on a pixel grid: coordinates, soft fields in [0, 1] and masks of its parts.

    Args:
        anatomy: the patient.
        size: side of the square image in pixels.
    """

    def __init__(self, anatomy: Anatomy, size: int) -> None:
        self.anatomy = a = anatomy
        self.size = size
        centres = _pixel_centres(size)
        self.y: Array = ((centres - np.float32(0.5 + a.shift_y)) / np.float32(a.scale) + np.float32(0.5))[:, None]
        self._columns = (centres - np.float32(0.5 + a.shift_x)) / np.float32(a.scale * a.width)
        self.x: Array = self._columns[None, :] - np.float32(a.tilt) * (self.y - np.float32(0.45))
        self.pixel = 1.0 / (size * a.scale)
        self.edge = max(0.006, 0.8 * self.pixel)  # half width of an anatomical edge
        self.front = np.float32(0.012 * a.rotation)  # how far rotation moves what lies in front
        self._lungs: dict[str, Array] = {}
        self._spans: dict[str, tuple[Array, Array]] = {}
        self._profiles: dict[str, Array] = {}
        self._silhouette: Array | None = None
        self._heart: Mask | None = None

    def window(self, x0: float, x1: float, y0: float, y1: float) -> tuple[slice, slice]:
        """Rows and columns that cover a rectangle of the body frame (clipped to the image)."""
        lean = abs(self.anatomy.tilt) * 0.6
        rows = np.searchsorted(self.y[:, 0], (y0, y1))
        columns = np.searchsorted(self._columns, (min(x0, x1) - lean, max(x0, x1) + lean))
        return slice(int(rows[0]), int(rows[1])), slice(int(columns[0]), int(columns[1]))

    def sx(self, side: str, at: tuple[slice, slice] | None = None) -> Array:
        """Distance from the midline towards `side`."""
        x = self.x if at is None else self.x[at]
        return x if side == "left" else -x

    # --- lungs and diaphragm

    def lung_span(self, side: str) -> tuple[Array, Array]:
        """Medial and lateral limit (sx) of the lung outline for every row."""
        if side not in self._spans:
            self._spans[side] = self._lung_span(side)
        return self._spans[side]

    def _lung_span(self, side: str) -> tuple[Array, Array]:
        stretch = 1.0 + 0.04 * SIGN[side] * self.anatomy.rotation
        up = np.clip((LUNG_MIDDLE - self.y) / (LUNG_MIDDLE - LUNG_APEX), 0.0, 1.0)
        half = LUNG_HALF_WIDTH * stretch * (1.0 - up**2.5) ** (1 / 2.3)
        half = np.where(self.y < LUNG_APEX, -1.0, half)
        centre = LUNG_CENTRE - 0.068 * up * up
        return (centre - half).astype(np.float32), (centre + half).astype(np.float32)

    def dome(self, side: str, sx: Array) -> Array:
        """y of the hemidiaphragm at sx: a dome that falls off steeply to the costophrenic angle."""
        return np.float32(self.anatomy.dome[side]) + np.float32(2.25) * np.square(sx - np.float32(0.16))

    def lung(self, side: str) -> Array:
        """Soft lung outline, behind the heart included."""
        if side not in self._lungs:
            sx = self.sx(side)
            medial, lateral = self.lung_span(side)
            field = ramp(lateral - sx, self.edge) * ramp(sx - medial, self.edge)
            self._lungs[side] = field * ramp(self.dome(side, sx) - self.y, self.edge)
        return self._lungs[side]

    def zone_centre(self, side: str, zone: str) -> tuple[float, float]:
        """(sx, y) in the middle of the aerated part of a lung zone."""
        return self.lung_middle(side, ZONE_CENTRES[zone])

    def lung_middle(self, side: str, y: float) -> tuple[float, float]:
        row = int(np.clip(np.searchsorted(self.y[:, 0], y), 0, self.size - 1))
        medial, lateral = self.lung_span(side)
        inner = max(float(medial[row, 0]), float(self.profile(side)[row, 0]) + SIGN[side] * float(self.front))
        return 0.5 * (inner + float(lateral[row, 0])), y

    # --- mediastinum

    def profile(self, side: str) -> Array:
        """Distance (sx) of the mediastinal and cardiac border from the midline for every row."""
        if side not in self._profiles:
            self._profiles[side] = self._profile(side)
        return self._profiles[side]

    def _profile(self, side: str) -> Array:
        a, y = self.anatomy, self.y
        wide = np.float32(a.widening) * ramp(y - 0.165, 0.065) * ramp(0.435 - y, 0.065)
        if side == "left":
            base = np.float32(a.mediastinum_left)
            upper = base + np.float32(a.knob) * bump(y - 0.295, 0.065) + np.float32(0.016) * bump(y - 0.405, 0.07)
            reach = a.heart_left
            # the left ventricle slopes out to the apex, which rests on the diaphragm
            grow = np.clip((y - (HEART_TOP - 0.03)) / (HEART_WIDEST + 0.02 - HEART_TOP), 0.0, 1.0) ** 1.25
            grow = grow * grow * (3 - 2 * grow) * 0.45 + 0.55 * grow
            close = np.sqrt(np.clip(1.0 - np.square(np.maximum(y - HEART_WIDEST - 0.02, 0.0) / 0.10), 0.0, 1.0))
        else:
            base = np.float32(a.mediastinum_right)
            upper = base * ramp(y - 0.02, 0.12) + np.float32(0.004)
            reach = a.heart_right
            grow = np.sqrt(np.clip(1.0 - np.square((y - 0.645) / 0.185), 0.0, 1.0))
            close = np.float32(1.0)
        return np.maximum(upper + wide, base + (np.float32(reach) - base) * grow * close)

    def silhouette(self) -> Array:
        """Soft mediastinum and heart as one shadow."""
        if self._silhouette is None:
            x = self.x - self.front
            left = ramp(self.profile("left") - x, 0.9 * self.edge)
            right = ramp(self.profile("right") + x, 0.9 * self.edge)
            self._silhouette = left * right * ramp(self.y - 0.08, 0.05)
        return self._silhouette

    def heart(self) -> Mask:
        """Mask of the cardiac silhouette."""
        if self._heart is None:
            self._heart = self._draw_heart()
        return self._heart

    def _draw_heart(self) -> Mask:
        a = self.anatomy
        x = self.x - self.front
        inside = (x < self.profile("left")) & (-x < self.profile("right")) & (self.y > HEART_TOP)
        middle, half = 0.5 * (a.heart_left - a.heart_right), 0.5 * (a.heart_left + a.heart_right)
        floor = HEART_WIDEST + 0.105 * np.sqrt(np.clip(1.0 - np.square((x - middle) / half), 0.0, 1.0))
        return inside & (self.y < floor)

    def clavicle_y(self, side: str, sx: Array) -> Array:
        """y of the clavicle's axis at sx: an S from the sternum up to the shoulder."""
        along = (sx - np.float32(0.03)) * np.float32(1 / 0.36)
        return np.float32(self.anatomy.clavicle[side]) - 0.085 * along + 0.012 * np.sin(along * np.float32(2 * np.pi))

    def rib_phase(self, side: str, sx: Array, y: Array) -> Array:
        """Position across the posterior ribs: rib number k has its axis where the phase is k."""
        a = self.anatomy
        arc = 0.85 * sx * sx + 0.03 * sx
        return (y - arc - np.float32(0.085)) * np.float32(1 / a.rib_spacing) - np.float32(0.2 * a.rib_phase)

    # --- masks

    def mask(self, name: str) -> Mask:
        """Boolean mask of an anatomy node.

        Args:
            name: one of `ANATOMY_NODES`, or "stomach bubble" (empty where the patient shows none).

        Returns:
            bool array (size, size).
        """
        side, _, part = name.partition(" ")
        if side in SIDES and part in ("lung", *_LUNG_NODES):
            return self._lung_part(side, part)
        if side in SIDES and part == "clavicle":
            return self._clavicle(side)
        return self._central_part(name)

    def _lung_part(self, side: str, part: str) -> Mask:
        sx, y = self.sx(side), self.y
        lung = (self.lung(side) > 0.5) & (self.silhouette() < 0.5)
        medial, lateral = self.lung_span(side)
        if part == "lung":
            return lung
        if part.endswith("lung zone"):
            low, high = ZONES[part.split()[0]]
            return lung & (y >= low) & (y < high)
        if part == "apical zone":
            return lung & (y < self.anatomy.clavicle[side])
        if part == "hilar structures":
            inside = np.square((sx - 0.085) / 0.05) + np.square((y - 0.425) / 0.075) < 1
            return inside & (self.lung(side) > 0.5)
        if part == "costophrenic angle":
            return lung & (sx > lateral - 0.075) & (y > self.dome(side, lateral - 0.01) - 0.085)
        near = np.abs(y - self.dome(side, sx)) < 0.014
        return near & (sx < lateral) & (sx > np.maximum(medial, 0.045))

    def _clavicle(self, side: str) -> Mask:
        sx = self.sx(side) - np.float32(SIGN[side]) * self.front
        return (np.abs(self.y - self.clavicle_y(side, sx)) < 0.014) & (sx > 0.03) & (sx < 0.39)

    def _spine(self) -> Mask:
        return np.abs(self.x + 0.5 * self.front) < np.full_like(self.y, 0.034)

    def _central_part(self, name: str) -> Mask:
        x, y = self.x - self.front, self.y
        above_heart = (self.silhouette() > 0.5) & (y <= HEART_TOP) & (y > LUNG_APEX)
        if name == "lungs":
            return self._lung_part("right", "lung") | self._lung_part("left", "lung")
        if name == "cardiac silhouette":
            return self.heart().copy()
        if name == "upper mediastinum":
            return above_heart & (y <= CARINA)
        if name == "mediastinum":
            return above_heart | self.heart()
        if name == "aortic arch":
            return above_heart & (np.square(x - 0.03) + np.square(y - 0.295) < 0.0031) & (x > -0.02)
        if name == "superior vena cava":
            return above_heart & (x < -0.016) & (y > 0.22)
        if name == "right atrium":
            return self.heart() & (x < -0.035) & (y > 0.50)
        if name == "cavoatrial junction":
            border = -0.6 * self.profile("right")
            return np.square(x - border) + np.square(y - 0.475) < 0.0009
        if name == "trachea":
            return (np.abs(x + 0.006) < 0.017) & (y < CARINA)
        if name == "carina":
            return np.square(x + 0.006) + np.square(y - CARINA) < 0.0007
        if name == "spine":
            return self._spine()
        if name == "skeletal structures":
            return self._spine() | self._clavicle("right") | self._clavicle("left") | self._ribs()
        if name == "abdomen":
            return self._below_diaphragm() & ~self.heart() & (self.body() > 0.5)
        if name == "chest":
            _, right = self.lung_span("right")
            _, left = self.lung_span("left")
            wall = (self.x < left + 0.03) & (-self.x < right + 0.03)
            return (wall & (y > LUNG_APEX) & ~self._below_diaphragm()) | self._central_part("mediastinum")
        if name == STOMACH_BUBBLE:
            return self.bubble() > 0.5
        raise KeyError(name)

    def _below_diaphragm(self) -> Mask:
        return np.where(self.x > 0, self.dome("left", self.x), self.dome("right", -self.x)) < self.y

    def _ribs(self) -> Mask:
        ribs = np.zeros((self.size, self.size), dtype=bool)
        for side in SIDES:
            sx = self.sx(side)
            phase = self.rib_phase(side, sx, self.y)
            near = np.abs(phase - np.round(phase)) < 0.17
            _, lateral = self.lung_span(side)
            ribs |= near & (sx > 0.03) & (sx < lateral + 0.02) & (phase > -0.5) & (phase < 8.5)
        return ribs

    def bubble(self) -> Array:
        """Soft gas bubble of the stomach, under the left hemidiaphragm."""
        if self.anatomy.bubble is None:
            return np.zeros((self.size, self.size), dtype=np.float32)
        x, y, wide, high = self.anatomy.bubble
        distance = np.square((self.x - x) / wide) + np.square((self.y - y) / high)
        return ramp(1.0 - distance, 0.35)

    def body(self) -> Array:
        """Soft outline of the patient: neck, shoulders, trunk."""
        y = self.y
        half = 0.10 + 0.40 * ramp(y - 0.065, 0.11) - 0.055 * ramp(y - 0.42, 0.12) + 0.03 * ramp(y - 0.8, 0.15)
        return ramp(half.astype(np.float32) - np.abs(self.x), 0.028)
