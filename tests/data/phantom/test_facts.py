"""What a fact may say."""

from __future__ import annotations

import pytest

from rrg_hf.data.phantom import Fact
from rrg_hf.errors import DataError
from rrg_hf.observations import LabelState


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observation": "No Finding"}, "Cannot draw 'No Finding'"),
        ({"observation": "Edema", "state": LabelState.NEGATIVE}, "positive or uncertain"),
        ({"observation": "Edema", "side": "left"}, "Edema cannot have side='left'.*None"),
        ({"observation": "Pneumothorax", "side": "bilateral"}, r"cannot have side='bilateral'.*\['right', 'left'\]"),
        ({"observation": "Pneumonia", "side": "left", "zone": "middle"}, "zone='middle'.*'mid'"),
        ({"observation": "Pneumonia", "severity": "large"}, "severity='large'.*'mild'"),
        ({"observation": "Fracture", "kind": "femur"}, "kind='femur'.*'clavicle'"),
        ({"observation": "Edema", "change": "worse"}, "change='worse'"),
    ],
)
def test_impossible_facts_are_named(arguments, message):
    with pytest.raises(DataError, match=message):
        Fact(**arguments)


def test_sides_to_draw():
    assert Fact("Pneumonia", side="bilateral").sides == ("right", "left")
    assert Fact("Pneumonia", side="left").sides == ("left",)
    assert Fact("Edema").sides == ()
