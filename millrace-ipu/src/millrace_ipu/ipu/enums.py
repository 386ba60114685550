"""Members of the enumerations of IPU programs, some of which may be given by name.

member(PipelineSchedule, "pipeline_schedule", value)                   members only
member_by_name(ReplicatedMetricReductionMethod, "...", "mean")         names too, in any case
"""

import enum
from typing import TypeVar

from millrace.errors import DTypeError, OptionError

EnumMember = TypeVar("EnumMember", bound=enum.Enum)


def member(kind: type[EnumMember], option: str, value: object) -> EnumMember:
    """Returns the value of an option that takes members of an enumeration.

    Raises:
        DTypeError: for anything else.
    """
    if not isinstance(value, kind):
        raise DTypeError(
            f"{option} must be a member of {kind.__name__}, one of {[m.name for m in kind]}. "
            f"Received: {value!r} of type {type(value).__name__}."
        )
    return value


def member_by_name(kind: type[EnumMember], option: str, value: object) -> EnumMember:
    """Returns the value of an option that takes members of an enumeration, or their names.

    Raises:
        OptionError: for anything else, with all names.
    """
    if isinstance(value, kind):
        return value
    names = kind.__members__
    if not isinstance(value, str) or value.upper() not in names:
        raise OptionError(f"{option} must be one of {list(names)}. Received: {value!r}.")
    return names[value.upper()]
