"""Settings read from a file or a command line: known by name, and of the type that their field declares."""

from __future__ import annotations

import difflib
import numbers
import os
import reprlib
import types
import typing
from collections.abc import Collection
from typing import Any

from ..errors import ConfigError

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list of texts",
    dict: "a block of settings",
}


def check_keys(given: Collection[Any], allowed: Collection[str], where: str) -> None:
    """Refuse unknown settings, naming the nearest valid one.

    Args:
        given: the keys found.
        allowed: the keys that mean something there.
        where: what the keys belong to, for the message ("training", "stages.mem").

    Raises:
        ConfigError: a key of `given` is not in `allowed`.
    """
    unknown = [key for key in given if key not in allowed]
    if not unknown:
        return
    hints = []
    for key in unknown:
        near = difflib.get_close_matches(str(key), list(allowed), n=1, cutoff=0.5)
        hints.append(f"{key!r} (did you mean {near[0]!r}?)" if near else repr(key))
    known = f" It knows {sorted(allowed)}." if len(allowed) <= 12 else ""
    raise ConfigError(f"{where} has no setting {', '.join(hints)}.{known} Correct the spelling or remove it.")


def convert_setting(name: str, value: Any, hint: Any) -> Any:
    """Bring a value to the type its field declares: YAML reads `1e-5` as text, `8.0` as a float, `no` as false.

    Args:
        name: the setting's full name, for the message ("stages.mem.learning_rate").
        value: as read.
        hint: the field's type, as `typing.get_type_hints` gives it.

    Raises:
        ConfigError: the value is of another kind, or cannot be read as one.
    """
    options = _options(hint)
    kinds = {typing.get_origin(option) or option for option in options}
    if value is None or any(option is value for option in options):  # a Literal's value, such as False
        if value is None and type(None) not in kinds:
            raise ConfigError(f"{name} is empty. Give {_wanted(kinds)}, or remove it.")
        return value
    if value is False and name.endswith("_strategy"):
        return "no"  # which YAML reads as false
    if isinstance(value, os.PathLike) and str in kinds:
        return os.fspath(value)
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif isinstance(value, (list, tuple)):
        if list in kinds and all(isinstance(part, str) for part in value):
            return list(value)
    elif isinstance(value, str) and {str, list} & kinds:
        return value if str in kinds else [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, (str, numbers.Real)) and {int, float} & kinds:
        number = _number(value)
        if number is not None and (float in kinds or number.is_integer()):
            return number if float in kinds else int(number)
    elif isinstance(value, dict):
        if dict in kinds:
            return value
    # An object of the library's own, which no file can hold: an enum member, a configuration.
    elif any(isinstance(kind, type) and isinstance(value, kind) for kind in kinds) or hasattr(value, "to_dict"):
        return value
    raise ConfigError(f"{name} must be {_wanted(kinds)}, not {reprlib.repr(value)}.")


def _options(hint: Any) -> list[Any]:
    """What a hint allows: types, and the values of a `Literal`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return [option for part in typing.get_args(hint) for option in _options(part)]
    return list(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else [hint]


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _wanted(kinds: Collection[Any]) -> str:
    words = [word for kind, word in _WORDS.items() if kind in kinds and not (kind is int and float in kinds)]
    if words:
        return " or ".join(words)
    names = sorted(kind.__name__ for kind in kinds if isinstance(kind, type) and kind is not type(None))
    return f"a {' or '.join(names)}, which only Python can make"
