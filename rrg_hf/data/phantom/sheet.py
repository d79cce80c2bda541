"""A contact sheet of phantom studies, to look at."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from ...errors import DataError
from ...observations import LabelState
from .dataset import PhantomStudy
from .facts import Fact


def caption_of(fact: Fact) -> str:
    """A fact in a few words, e.g. "small left Pleural Effusion"; uncertain ones carry a question mark."""
    place = f"{fact.side or ''} {fact.zone or ''}".strip()
    words = [fact.severity, place, fact.observation, f"({fact.kind})" if fact.kind else ""]
    text = " ".join(word for word in words if word)
    return f"{text} ?" if fact.state is LabelState.UNCERTAIN else text


def contact_sheet(studies: Sequence[PhantomStudy], columns: int = 4, *, tile: int = 256) -> Image.Image:
    """Studies side by side, each over its study id and what is drawn in it.

    Args:
        studies: what to show.
        columns: pictures a row.
        tile: side of a picture on the sheet, in pixels.

    Returns:
        RGB image. The captions stand beside the radiographs, never in them.

    Raises:
        DataError: no studies, or fewer than one column.
    """
    if not studies:
        raise DataError("A contact sheet needs at least one study.")
    if columns < 1:
        raise DataError(f"A contact sheet needs at least one column, not columns={columns}.")
    columns = min(columns, len(studies))
    font = ImageFont.load_default(size=12)
    per_line = max(12, int(tile / 6.4))
    captions = []
    for study in studies:
        facts = "; ".join(caption_of(fact) for fact in study.facts) or "normal"
        captions.append(textwrap.wrap(study.study_id, per_line) + textwrap.wrap(facts, per_line))
    gap, line = 8, 15
    text_height = line * max(len(lines) for lines in captions)
    rows = -(-len(studies) // columns)
    sheet = Image.new("RGB", (columns * (tile + gap) + gap, rows * (tile + text_height + gap) + gap), "white")
    pen = ImageDraw.Draw(sheet)
    for i, (study, lines) in enumerate(zip(studies, captions, strict=True)):
        left, top = gap + (i % columns) * (tile + gap), gap + (i // columns) * (tile + text_height + gap)
        picture = Image.fromarray(study.image).resize((tile, tile), Image.Resampling.BICUBIC)
        sheet.paste(picture.convert("RGB"), (left, top))
        for number, text in enumerate(lines):
            pen.text((left, top + tile + 1 + number * line), text, fill="black", font=font)
    return sheet
