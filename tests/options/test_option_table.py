"""The declaration of an option: everything that follows from its one place."""

import enum
from dataclasses import dataclass
from typing import Literal

import pytest

from millrace.base.options.checks import at_least, member_of, truth
from millrace.base.options.table import Option, declare, entries_of, key_fields, table_of
from millrace.errors import OptionError

pytestmark = pytest.mark.quick

SETTER = "set_cooking_options"


class Heat(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, kw_only=True)
class Oven:
    """A record with a new option of each kind, and a field that is none."""

    minutes: int = declare(2, Option("minutes", at_least(1), (SETTER,), doc="of baking."))
    heat: Heat = declare(
        Heat.LOW,
        Option("oven_heat", member_of(Heat), doc="of it.", arguments={SETTER: "heat"}),
    )
    fan: bool | None = declare(
        None,
        Option("fan", truth, (SETTER,), doc="blows.", auto="above low heat", is_in_key=False),
    )
    shelf: int = 0


@dataclass(frozen=True, kw_only=True)
class Kitchen:
    oven: Oven = Oven()
    light: bool = declare(
        False, Option("light", truth, (SETTER,), doc="is on.", saved_as="lamp", accepts=bool | str)
    )


def test_the_table_has_the_options_of_records_and_of_the_class_itself():
    entries = {(entry.record, entry.field): entry for entry in table_of(Kitchen)}
    assert list(entries) == [("oven", "minutes"), ("oven", "heat"), ("oven", "fan"), ("", "light")]
    assert [entry.default for entry in entries.values()] == [2, Heat.LOW, None, False]
    assert [entry.saved_as for entry in entries.values()] == ["minutes", "heat", "fan", "lamp"]
    assert [entry.accepts for entry in entries.values()] == [
        int | None,
        Literal["low", "high"] | Heat | None,
        bool | None,
        bool | str | None,
    ]


def test_a_setter_may_have_another_name_for_it():
    options = [entry.option for entry in entries_of(Oven)]
    assert [option.argument(SETTER) for option in options] == ["minutes", "heat", "fan"]
    assert [option.argument("set_other_options") for option in options] == [None] * 3


def test_a_value_is_checked_by_the_name_of_the_argument():
    minutes, heat, fan = (entry.option for entry in entries_of(Oven))
    assert minutes.checked("minutes", 3) == 3
    assert heat.checked("heat", "HIGH") is Heat.HIGH
    assert fan.checked("fan", "Auto") is None
    with pytest.raises(OptionError, match=r"heat must be one of \['low', 'high'\]. Received: 3"):
        heat.checked("heat", 3)
    with pytest.raises(OptionError, match=r"minutes must be a whole number.*Received: 'auto'"):
        minutes.checked("minutes", "auto")


def test_a_value_is_put_into_a_copy():
    minutes, *_, light = table_of(Kitchen)
    assert minutes.put(Kitchen(), 3) == Kitchen(oven=Oven(minutes=3))
    assert light.put(Kitchen(), True) == Kitchen(light=True)


def test_keys_have_the_public_names_and_plain_values():
    assert dict(key_fields(Oven(heat=Heat.HIGH))) == {"minutes": 2, "oven_heat": "high"}
