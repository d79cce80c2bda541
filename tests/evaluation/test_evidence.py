"""The evidence test with two toy models: one that reads the pixels and one that does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.evaluation.evidence import evidence_test
from rrg_hf.evaluation.regions import BACKGROUND, MATCHED_BACKGROUND, REGIONS

SIZE = 40
PLACES = {  # finding -> rows and columns of its bright square
    "Consolidation": (slice(10, 16), slice(28, 34)),  # left lung
    "Lung Lesion": (slice(10, 16), slice(6, 12)),  # right lung
    "Cardiomegaly": (slice(24, 29), slice(17, 23)),  # heart
    "Fracture": (slice(1, 4), slice(1, 6)),  # background
}
WORDS = {
    "Consolidation": "There is consolidation.",
    "Lung Lesion": "There is a lung nodule.",
    "Cardiomegaly": "There is cardiomegaly.",
    "Fracture": "There is a rib fracture.",
}
ANATOMY = {
    "right lung": (slice(5, 30), slice(4, 16)),
    "left lung": (slice(5, 30), slice(24, 36)),
    "cardiac silhouette": (slice(18, 32), slice(16, 27)),
}
NORMAL = "The lungs are clear."


def report(findings: list[str]) -> str:
    return " ".join(WORDS[name] for name in findings) or NORMAL


def study(index: int, findings: list[str]) -> dict[str, Any]:
    pixels = np.random.default_rng(index).integers(60, 120, size=(SIZE, SIZE)).astype(np.uint8)
    boxes = []
    for name in findings:
        rows, columns = PLACES[name]
        pixels[rows, columns] = 250
        xywh = [columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start]
        boxes.append({"finding": name, "image_index": 0, "xywh": [float(value) for value in xywh]})
    masks = []
    for name, (rows, columns) in ANATOMY.items():
        mask = np.zeros((SIZE, SIZE), dtype=np.uint8)
        mask[rows, columns] = 255
        masks.append({"name": name, "image_index": 0, "mask": Image.fromarray(mask)})
    return {
        "study_id": f"s{index}",
        "images": [Image.fromarray(pixels)],
        "views": ["frontal"],
        "findings": report(findings),
        "boxes": boxes,
        "masks": masks,
        "source": "phantom",
    }


ROWS = [
    study(index, [name for bit, name in enumerate(PLACES) if name != "Fracture" and index >> bit & 1])
    for index in range(24)
]


def sees(images: list[Image.Image], rows: list[Mapping[str, Any]]) -> list[str]:
    """Reads each finding where it would be drawn."""
    reports = []
    for image in images:
        pixels = np.asarray(image)
        reports.append(report([name for name, place in PLACES.items() if pixels[place].mean() > 200]))
    return reports


def blind(images: list[Image.Image], rows: list[Mapping[str, Any]]) -> list[str]:
    """Writes the reference of its indication, whatever the image."""
    return [row["findings"] for row in rows]


def test_model_that_looks_loses_what_is_hidden() -> None:
    result = evidence_test(sees, ROWS, bootstrap=200, metrics=["rules", "nlg"])
    assert result.n == 24 and result.mask_kind == "dataset" and result.mask_kinds == {"dataset": 24}
    assert result.intact["value"] == 1.0
    for region, finding in (("left lung", "Consolidation"), ("right lung", "Lung Lesion")):
        entry = result.regions[region]
        drop = entry["drop"]
        assert 0 < drop["low"] < drop["value"] < drop["high"] and entry["p_value"] < 0.05
        assert entry["score"]["value"] == pytest.approx(1 - drop["value"])
        having = [row for row in ROWS if any(box["finding"] == finding for box in row["boxes"])]
        assert entry["changed_share"] == pytest.approx(len(having) / len(ROWS))
        located = entry["located_recall"]
        assert located["findings"] == len(having)
        assert (located["intact"]["value"], located["occluded"]["value"]) == (1.0, 0.0)
        assert located["drop"]["low"] == 1.0
        assert entry["drops"]["rouge_l"]["value"] > 0
    for region in (BACKGROUND, MATCHED_BACKGROUND):
        assert result.regions[region]["drop"]["value"] == 0.0 and result.regions[region]["p_value"] == 1.0
        assert result.regions[region]["changed_share"] == 0.0
        assert result.regions[region]["located_recall"] is None
        assert result.drop_beyond_background[region]["value"] == pytest.approx(result.anatomical_drop)
        assert result.drop_beyond_background[region]["low"] > 0
    assert result.anatomical_exceeds_background is True
    assert result.anatomical_exceeds_matched_background is True
    assert result.protocol["phantom"] is True and result.protocol["section"] == "findings"
    json.dumps(result.to_dict(), allow_nan=False)


def test_area_shares() -> None:
    result = evidence_test(blind, ROWS, bootstrap=20)
    shares = {name: entry["area_share"] for name, entry in result.regions.items()}
    assert shares["left lung"] == pytest.approx(25 * 12 / 1600)
    assert shares["cardiac silhouette"] == pytest.approx(14 * 11 / 1600)
    assert shares[MATCHED_BACKGROUND] == pytest.approx(round(np.mean([300, 300, 154])) / 1600)
    assert shares[BACKGROUND] > shares[MATCHED_BACKGROUND]


def test_blind_model_shows_no_drop() -> None:
    result = evidence_test(blind, ROWS, bootstrap=50)
    assert result.anatomical_drop == 0.0
    assert result.anatomical_exceeds_background is False
    assert result.anatomical_exceeds_matched_background is False
    assert all(entry["changed_share"] == 0.0 for entry in result.regions.values())
    assert result.regions["left lung"]["located_recall"]["drop"]["value"] == 0.0


def test_model_that_reads_the_border_is_caught() -> None:
    """Findings drawn in the background: hiding it hurts more than hiding anatomy."""
    rows = [study(index, ["Fracture"] if index % 2 else []) for index in range(12)]
    result = evidence_test(sees, rows, bootstrap=50)
    assert result.regions[BACKGROUND]["drop"]["value"] > 0 and result.anatomical_drop == 0.0
    assert result.anatomical_exceeds_background is False
    assert result.regions[BACKGROUND]["located_recall"]["findings"] == 6


def test_only_some_regions() -> None:
    result = evidence_test(sees, ROWS, regions=["left lung"], bootstrap=20)
    assert set(result.regions) == {"left lung"} and result.anatomical_exceeds_background is None
    result = evidence_test(sees, ROWS, regions=[BACKGROUND], bootstrap=20)
    assert result.anatomical_drop is None and result.drop_beyond_background == {}


def test_batches_and_reproducibility() -> None:
    sizes: list[int] = []

    def counting(images: list[Image.Image], rows: list[Mapping[str, Any]]) -> list[str]:
        assert len(images) == len(rows) and all(image.mode == "L" for image in images)
        sizes.append(len(images))
        return sees(images, rows)

    small = evidence_test(counting, ROWS, bootstrap=50, batch_size=10)
    assert sizes == [10] * 6 + [10] * 6 + [4] * 6
    assert evidence_test(sees, ROWS, bootstrap=50).to_dict() == small.to_dict()
    assert evidence_test(sees, iter(ROWS), bootstrap=50).n == 24


def test_fixed_regions_are_named() -> None:
    rows = [dict(row, masks=[]) for row in ROWS[:6]]
    assert evidence_test(sees, rows, bootstrap=20).mask_kind == "fixed_regions"
    mixed = evidence_test(sees, [*rows, *ROWS[6:9]], bootstrap=20)
    assert mixed.mask_kind == "mixed" and mixed.mask_kinds == {"dataset": 3, "fixed_regions": 6}


def test_studies_without_text_or_image_are_counted() -> None:
    rows = [*ROWS[:6], dict(ROWS[6], findings="nan"), dict(ROWS[7], images=[])]
    result = evidence_test(sees, rows, bootstrap=20)
    assert result.n == 6
    assert result.protocol["skipped"] == {
        "reference without findings": {"count": 1, "first_ids": ["s6"]},
        "no image": {"count": 1, "first_ids": ["s7"]},
    }
    with pytest.raises(DataError, match="1 with reference without findings, 1 with no image"):
        evidence_test(sees, rows[6:], bootstrap=20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regions": ["liver"]}, r"\['liver'\].*left lung"),
        ({"regions": []}, "Unknown regions"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"bootstrap": 0}, "at least 20"),
        ({"policy": "ones"}, "'ones'"),
        ({"metrics": ["bleu"]}, "Unknown metrics"),
        ({"metrics": ["rules", "meteor"]}, "once per region"),
        ({"metric": "bleu_4"}, "No score 'bleu_4' among"),
        ({"fill": "noise"}, "'noise'"),
    ],
)
def test_settings_that_cannot_work_fail_before_generation(settings: dict[str, Any], message: str) -> None:
    def never(images: list[Image.Image], rows: list[Mapping[str, Any]]) -> list[str]:
        raise AssertionError("generated before the settings were checked")

    with pytest.raises(ConfigError, match=message):
        evidence_test(never, ROWS, **{"bootstrap": 20, **settings})


def test_generator_that_loses_reports() -> None:
    with pytest.raises(DataError, match="0 reports for 24 images"):
        evidence_test(lambda images, rows: [], ROWS, bootstrap=20)


def test_phantom_and_real_rows_are_not_mixed() -> None:
    with pytest.raises(DataError, match="mix phantom"):
        evidence_test(sees, [ROWS[0], dict(ROWS[1], source="iu_xray")], bootstrap=20)


def test_repeated_study_is_an_error() -> None:
    with pytest.raises(DataError, match="'s0' appears twice"):
        evidence_test(sees, [ROWS[0], ROWS[0]], bootstrap=20)
    with pytest.raises(DataError, match="no rows"):
        evidence_test(sees, [], bootstrap=20)


def test_every_region_is_tested_by_default() -> None:
    assert tuple(evidence_test(blind, ROWS[:3], bootstrap=20).regions) == REGIONS
