"""Draws a chest and its findings as a frontal radiograph, by adding up what attenuates the beam.

The lungs hold air; findings take air away (`Radiograph.fill`), add density (`Radiograph.add`) or wipe the vascular
markings. One fixed tone curve turns attenuation into brightness, so a finding never changes pixels far from it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .anatomy import SIDES, SIGN, Array, Chest, Mask, bump, ramp, upsample

Window = tuple[slice, slice]

TISSUE = 1.32  # attenuation of the trunk where there is no air
AIR = 0.80  # how much of it a healthy lung takes away
BEHIND_HEART = 0.12  # the lung behind the heart and mediastinum, as a share of a free lung


def clavicle_shaft(offset: Array) -> Array:
    """Density across a clavicle: a shaft with a denser cortex."""
    return ramp(0.0135 - np.abs(offset), 0.006) * (0.30 + 6.0 * np.abs(offset))


class Radiograph:
    """A radiograph being drawn.

    Attributes:
        chest: geometry.
        air: aeration in [0, 1] of the image plane, both lungs.
        density: attenuation of bone, metal and the like, added to that of soft tissue.
        markings: contrast of vessels and interstitium; 0 where there are none (pneumothorax).
    """

    def __init__(self, chest: Chest) -> None:
        self.chest = chest
        free = 1.0 - (1.0 - BEHIND_HEART) * chest.silhouette()
        self.air: Array = (chest.lung("right") + chest.lung("left")) * free
        self.density: Array = np.zeros((chest.size, chest.size), dtype=np.float32)
        self.markings: Array = np.ones((chest.size, chest.size), dtype=np.float32)
        self._bones()

    # --- what findings do

    def fill(self, at: Window, share: Array) -> None:
        """Replace a share (0 to 1, per pixel of the window) of the air by fluid or tissue."""
        self.air[at] *= 1.0 - share

    def add(self, at: Window, density: Array) -> None:
        self.density[at] += density

    def full(self, at: Window, inside: Mask) -> Mask:
        """A window's mask as a mask of the whole image."""
        mask = np.zeros((self.chest.size, self.chest.size), dtype=bool)
        mask[at] = inside
        return mask

    # --- normal structures

    def _bones(self) -> None:
        chest, a = self.chest, self.chest.anatomy
        # spine with its disc spaces
        at = chest.window(-0.06, 0.06, -0.2, 1.2)
        x = chest.x[at] + 0.5 * chest.front
        discs = 0.75 + 0.25 * np.cos(chest.y[at[0]] * np.float32(2 * np.pi / 0.062))
        self.density[at] += 0.30 * ramp(0.034 - np.abs(x), 0.012) * discs.astype(np.float32)
        for side in SIDES:
            self._ribs(side)
            at = chest.window(0.0, SIGN[side] * 0.43, 0.03, 0.25)
            sx = chest.sx(side, at) - np.float32(SIGN[side]) * chest.front
            axis = chest.clavicle_y(side, sx)
            span = ramp(sx - 0.03, 0.012) * ramp(0.39 - sx, 0.02)
            offset = chest.y[at[0]] - axis
            self.density[at] += a.rib_contrast * span * clavicle_shaft(offset)
            # head of the humerus and the blade of the scapula
            at = chest.window(SIGN[side] * 0.40, SIGN[side] * 0.60, 0.08, 0.30)
            distance = np.square(chest.sx(side, at) - 0.485) + np.square(chest.y[at[0]] - 0.19)
            self.density[at] += 0.30 * ramp(0.0027 - distance, 0.0016)
            at = chest.window(SIGN[side] * 0.27, SIGN[side] * 0.47, 0.16, 0.50)
            sx, y = chest.sx(side, at), chest.y[at[0]]
            border = 0.315 + 0.16 * (y - 0.2)
            blade = (
                ramp(sx - border, 0.012) * ramp(border + 0.10 - sx, 0.05) * ramp(0.45 - y, 0.05) * ramp(y - 0.2, 0.04)
            )
            self.density[at] += 0.10 * a.rib_contrast * blade

    def rib_shape(self, phase: Array) -> Array:
        """Brightness across the ribs: a band with brighter borders."""
        offset = np.abs(phase - np.round(phase))
        band = ramp(0.17 - offset, max(0.05, 0.55 * self.chest.pixel / self.chest.anatomy.rib_spacing))
        return band * (0.70 + 1.9 * offset)

    def _ribs(self, side: str) -> None:
        chest, a = self.chest, self.chest.anatomy
        at = chest.window(0.0, SIGN[side] * 0.44, 0.05, 0.93)
        sx, y = chest.sx(side, at), chest.y[at[0]]
        _, lateral = chest.lung_span(side)
        edge = lateral[at[0]]
        phase = chest.rib_phase(side, sx, y)
        cage = ramp(edge + 0.02 - sx, 0.012) * ramp(sx - 0.03, 0.012)
        count = ramp(phase + 0.5, 0.1) * ramp(8.6 - phase, 0.1)
        self.density[at] += 0.17 * a.rib_contrast * self.rib_shape(phase) * cage * count
        # anterior ends run down to the midline and fade into cartilage
        front = (y - (0.26 - 0.55 * (sx - 0.37)) - 0.03) * np.float32(1 / a.rib_spacing) - np.float32(
            0.2 * a.rib_phase
        )
        fade = ramp(sx - 0.19, 0.07) * ramp(front + 1.5, 0.1) * ramp(4.6 - front, 0.1)
        self.density[at] += 0.075 * a.rib_contrast * self.rib_shape(front) * cage * fade
        # the chest wall itself: muscle and the ribs seen end on
        wall = bump(sx - edge - 0.012, 0.022) * ramp(y - 0.16, 0.06)
        self.density[at] += 0.13 * wall

    def _vessels(self) -> Array:
        """Hila and the vessels that fan out of them."""
        chest = self.chest
        field = np.zeros((chest.size, chest.size), dtype=np.float32)
        for side in SIDES:
            at = chest.window(0.0, SIGN[side] * 0.36, 0.12, 0.78)
            dx = chest.sx(side, at) - np.float32(0.055)
            dy = chest.y[at[0]] - np.float32(0.425 + 0.008 * SIGN[side])
            radius = np.sqrt(np.square(dx) + np.square(dy)) + np.float32(1e-4)
            turn = np.arctan2(dy, dx) * np.float32(0.5 / np.pi)
            phase = np.float32(chest.anatomy.vessel_phase[side])
            bend = np.sin(radius * np.float32(16.0) + phase)
            field[at] += 0.34 * bump(dx - 0.015, 0.05) * bump(dy, 0.095)
            for count, inner, width in ((10.0, 0.0, 0.013), (23.0, 0.085, 0.008)):
                offset = turn * np.float32(count) + np.float32(0.14 * count / 10) * bend + phase
                number = np.round(offset)
                # no two branches are alike
                calibre = 0.55 + 0.45 * np.sin(number * np.float32(2.4) + phase)
                offset = (offset - number) * radius * np.float32(2 * np.pi / count)
                # vessels taper, down to what a pixel can show
                taper = np.maximum(width * (1.0 - 2.6 * radius), 0.9 * chest.pixel)
                branch = np.square(1.0 - np.minimum(np.square(offset / taper), 1.0))
                field[at] += 0.14 * calibre * branch * ramp(0.21 - radius, 0.12) * ramp(radius - inner, 0.02)
        return field

    def _breasts(self, soft: Array) -> None:
        """Soft shadows over the lower lungs, of very different size between patients."""
        chest = self.chest
        if chest.anatomy.breast <= 0.0:
            return
        for side in SIDES:
            at = chest.window(SIGN[side] * 0.05, SIGN[side] * 0.45, 0.42, 0.82)
            distance = np.square((chest.sx(side, at) - 0.245) / 0.17) + np.square((chest.y[at[0]] - 0.60) / 0.14)
            soft[at] *= 1.0 + np.float32(chest.anatomy.breast) * ramp(1.0 - distance, 0.22)

    def _airway(self) -> tuple[Window, Array]:
        """Trachea and the two main bronchi, as air."""
        chest = self.chest
        at = chest.window(-0.10, 0.10, -0.1, 0.46)
        x, y = chest.x[at] - chest.front + 0.006, chest.y[at[0]]
        trachea = ramp(0.0155 - np.abs(x), 0.008) * ramp(0.365 - y, 0.02)
        down = y - np.float32(0.352)
        fork = np.abs(np.abs(x) - np.where(x > 0, 0.95, 0.62).astype(np.float32) * down)
        bronchi = ramp(0.0105 - fork, 0.008) * ramp(down, 0.012) * ramp(0.075 - down, 0.02)
        return at, np.maximum(trachea, 0.8 * bronchi)

    # --- exposure

    def expose(self, rng: np.random.Generator) -> NDArray[np.uint8]:
        """The finished image: uint8 (size, size)."""
        chest, a = self.chest, self.chest.anatomy
        thick = (0.80 + 0.34 * ramp(chest.y - 0.70, 0.16) + 0.06 * ramp(0.22 - chest.y, 0.1)).astype(np.float32)
        body = chest.body()
        rough = upsample(a.texture, chest.size)
        # the trunk is thickest along the midline
        depth = 1.16 - np.float32(1.9) * np.square(chest.x)
        soft = np.float32(TISSUE * a.tissue) * thick * body * depth * (1.0 + 0.03 * rough)
        self._breasts(soft)
        attenuation = soft * (1.0 - np.float32(AIR) * self.air)
        attenuation += self._vessels() * self.air * self.markings
        attenuation += self.density * body
        at, airway = self._airway()
        attenuation[at] *= 1.0 - 0.24 * airway
        if a.bubble is not None:
            x, y, wide, high = a.bubble
            at = chest.window(x - 1.4 * wide, x + 1.4 * wide, y - 1.4 * high, y + 1.4 * high)
            attenuation[at] *= 1.0 - 0.40 * chest.bubble()[at]
        light = 1.0 - np.exp(attenuation * np.float32(-1.02 * a.gain))
        light = np.power(np.maximum(light, 1e-4), np.float32(a.gamma), dtype=np.float32)
        # photon noise is stronger where more light came through
        noise = rng.standard_normal((chest.size, chest.size), dtype=np.float32)
        light += noise * (np.float32(a.noise) * (1.15 - 0.6 * light))
        return (np.clip(0.03 + 0.95 * light, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
