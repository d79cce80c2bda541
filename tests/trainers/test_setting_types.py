"""Settings from YAML and command lines: known keys, and values of the type that a field declares."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Literal

import pytest

from rrg_hf.errors import ConfigError
from rrg_hf.trainers.setting_types import check_keys, convert_setting


class Colour(str, enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("1e-5", float, 1e-5),
        (8.0, int, 8),
        ("8", int | None, 8),
        (8, float, 8.0),
        (None, int | None, None),
        (True, bool | None, True),
        (False, Literal[False] | str, False),
        ("a, b,,c", list[str], ["a", "b", "c"]),
        (("a", "b"), list[str] | None, ["a", "b"]),
        ("a,b", str | list[str], "a,b"),
        ({"a": 1}, dict[str, Any] | str | None, {"a": 1}),
        ("{}", dict | str | None, "{}"),
        (Path("here"), str | None, "here"),
        (Colour.RED, Colour | str, Colour.RED),
    ],
)
def test_values_are_brought_to_their_type(value: Any, hint: Any, expected: Any) -> None:
    converted = convert_setting("block.name", value, hint)
    assert converted == expected and type(converted) is type(expected)


def test_no_is_a_strategy_although_yaml_reads_false() -> None:
    assert convert_setting("training.save_strategy", False, str) == "no"
    with pytest.raises(ConfigError, match="must be a text, not False"):
        convert_setting("training.optim", False, str)


@pytest.mark.parametrize(
    ("value", "hint", "wanted"),
    [
        ("fast", float, "a number"),
        (True, float, "a number"),
        (1.5, int, "a whole number"),
        ("maybe", bool, "true or false"),
        (1, bool | None, "true or false"),
        (0, Literal[False] | str, "a text"),
        (3, str, "a text"),
        (["a"], str | None, "a text"),
        (["a", 3], list[str], "a list of texts"),
        (3, list[str] | None, "a list of texts"),
        ([1], dict | str | None, "a text or a block of settings"),
        ({"a": 1}, int | None, "a whole number"),
        (float("nan"), int, "a whole number"),
        (3, Colour | None, "a Colour, which only Python can make"),
    ],
)
def test_values_of_another_kind_are_refused_by_full_name(value: Any, hint: Any, wanted: str) -> None:
    with pytest.raises(ConfigError, match=rf"^stages\.mem\.thing must be {wanted}, not "):
        convert_setting("stages.mem.thing", value, hint)


def test_an_empty_value_is_refused_where_none_is_meant() -> None:
    with pytest.raises(ConfigError, match=r"^training\.seed is empty\. Give a whole number, or remove it\.$"):
        convert_setting("training.seed", None, int)


def test_a_huge_value_is_shown_in_part() -> None:
    with pytest.raises(ConfigError) as caught:
        convert_setting("a", list(range(10_000)), int)
    assert len(str(caught.value)) < 120


def test_unknown_keys_are_named_with_the_nearest() -> None:
    check_keys(["a"], ["a", "b"], "here")
    with pytest.raises(ConfigError, match=r"'zzz'\. It knows \['a', 'b'\]"):
        check_keys(["zzz"], ["a", "b"], "here")
    with pytest.raises(ConfigError, match=r"here has no setting 'lenght' \(did you mean 'length'\?\), 3\."):
        check_keys(["lenght", 3], ["length"], "here")
