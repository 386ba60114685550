"""Checks of single values, each by a name and a value: returns the value, or raises.

whole_number("updates", 4.0, 1)   OptionError: updates must be a whole number ... Set updates=4.
member(Reduction, "reduction_method", "SUM")   -> Reduction.SUM
"""

import contextlib
import enum
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from millrace.errors import OptionError

Check = Callable[[str, Any], object]  # (name of an argument, value) -> value as it is kept
EnumMember = TypeVar("EnumMember", bound=enum.Enum)


def whole_number(name: str, value: object, minimum: int) -> int:
    """Returns `value` as an int.

    Raises:
        OptionError: if it is no whole number, or below `minimum`.
    """
    if isinstance(value, np.integer):
        value = int(cast(Any, value))
    if isinstance(value, bool) or not isinstance(value, int):
        is_whole = isinstance(value, float) and math.isfinite(value) and value.is_integer()
        advice = f" Set {name}={int(value)}." if is_whole and value >= minimum else ""  # type: ignore[arg-type,operator]
        raise OptionError(
            f"{name} must be a whole number of at least {minimum}. Received: {value!r} of type "
            f"{type(value).__name__}.{advice}"
        )
    if value < minimum:
        raise OptionError(
            f"{name} must be at least {minimum}. Received: {value}. Set {name}={minimum} or more."
        )
    return value


def seconds(name: str, value: object) -> float:
    """Returns `value` as a number of seconds.

    Raises:
        OptionError: if it is no finite number above 0.
    """
    if isinstance(value, np.integer | np.floating):
        value = cast(Any, value).item()
    if isinstance(value, int | float) and value is not True and 0 < value < math.inf:
        return float(value)
    raise OptionError(
        f"{name} must be a number of seconds above 0. Received: {value!r}. Set {name}=600 for ten "
        "minutes, for example."
    )


def directory_path(name: str, value: object) -> str:
    """Returns the path `value` as text.

    Raises:
        OptionError: if it is no path.
    """
    try:
        path = os.fspath(cast("os.PathLike[str]", value))
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise OptionError(
            f"{name} must be the path of a directory. Received: {value!r} of type "
            f'{type(value).__name__}. Set {name}="runs/first", for example.'
        )
    return path


def truth(name: str, value: object, choices: str = "True or False") -> bool:
    """Returns `value`.

    Raises:
        OptionError: if it is neither True nor False.
    """
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be {choices}. Received: {value!r}.")
    return value


def truth_or_auto(name: str, value: object) -> bool:
    """Returns `value`, likewise; `"auto"` never comes here."""
    return truth(name, value, "True, False or 'auto'")


def member(members: type[EnumMember], name: str, value: object) -> EnumMember:
    """Returns the member of an enumeration that `value` is or names, in upper or lower case.

    Raises:
        OptionError: with all names, if there is none.
    """
    if isinstance(value, members):
        return value
    names = [each.value for each in members]
    if not isinstance(value, str) or value.lower() not in names:
        raise OptionError(f"{name} must be one of {names}. Received: {value!r}.")
    return members(value.lower())


def at_least(minimum: int) -> Check:
    """Returns the check of a whole number."""
    return lambda name, value: whole_number(name, value, minimum)


def rows_of_part(name: str, value: object) -> int | str:
    """Returns a number of rows, `"auto"` or `"whole"`.

    Raises:
        OptionError: if it is none of these.
    """
    if isinstance(value, str):
        if value.lower() in ("auto", "whole"):
            return value.lower()
        raise OptionError(
            f"{name} must be a number of rows, 'auto' or 'whole'. Received: {value!r}."
        )
    return whole_number(name, value, 1)


def member_of(members: type[enum.Enum]) -> Check:
    """Returns the check of a choice by name."""
    return lambda name, value: member(members, name, value)


def unchecked(name: str, value: object) -> object:
    """Leaves the check to the setter, which knows the model's variables and the schedules."""
    return value


def device_numbers(name: str, value: object) -> tuple[int, ...]:
    """Returns the device number of each stage.

    Raises:
        OptionError: if `value` is no list of whole numbers of at least 0, or empty.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise OptionError(
            f"{name} must be a list with a device number for each stage, such as [0, 1]. "
            f"Received: {value!r}."
        )
    devices = cast(Sequence[object], value)
    return tuple(whole_number(f"{name}[{k}]", device, 0) for k, device in enumerate(devices))


def compiler_options(name: str, value: object) -> Mapping[str, Any]:
    """Returns options of XLA.

    Raises:
        OptionError: if they are no dict.
    """
    if not isinstance(value, Mapping):
        raise OptionError(
            f"{name} must be a dict of compiler options of XLA. Received: {value!r}. Set {{}} for "
            "none."
        )
    return cast(Mapping[str, Any], value)


def stages_compiler_options(name: str, value: object) -> tuple[Mapping[str, Any], ...] | None:
    """Returns the options of XLA for each stage; None for an empty list.

    Raises:
        OptionError: if they are no list of dicts.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise OptionError(
            f"{name} must be a list with a dict of compiler options for each stage. Received: "
            f"{value!r}."
        )
    stages: list[object] = [
        dict[str, object]() if each is None else each for each in cast(Sequence[object], value)
    ]
    return tuple(compiler_options(f"{name}[{k}]", each) for k, each in enumerate(stages)) or None


_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("kmgt", 1)
}
_SIZE = re.compile(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def bytes_or_share(value: object) -> int | float:
    """Returns a budget: bytes as an int, a share as a float.

    Raises:
        OptionError: if it is neither.
    """
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        number, prefix = match.groups()
        with contextlib.suppress(ValueError):  # of a number with two points, say
            return bytes_or_share(round(float(number) * _PREFIXES[(prefix or "").lower()]))
    elif isinstance(value, float) and 0 < value <= 1:
        return value
    elif isinstance(value, int | float) and value is not True and value == value // 1 >= 1:
        return int(value)
    raise OptionError(
        "budget must be bytes, a text such as '1.5GB' or '800 MiB', or a share such as 0.5 of what "
        f"training takes without recomputation. Received: {value!r}."
    )
