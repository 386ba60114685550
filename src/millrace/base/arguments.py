"""Unknown options of a setter, refused with the name that was probably meant.

    gradient_accumulation_steps_per_replicas    -> a misspelling
    prefetch                                    -> the begin of prefetch_depth
    zzz                                         -> the list of all names

A wrong guess costs more than none: nothing is suggested for a name unlike all others.
"""

import difflib
from collections.abc import Iterable, Mapping

from millrace.errors import OptionError

_CUTOFF = 0.75  # of `difflib`: below, names have little but an ending in common


def names_meant(name: str, names: Iterable[str]) -> list[str]:
    """Returns those of `names` that the writer of `name` may have meant."""
    names = list(names)
    if len(name) > 2 and (begun := [each for each in names if each.startswith(name)]):
        return begun[:3]
    return difflib.get_close_matches(name, names, n=1, cutoff=_CUTOFF)


def refuse_unknown(
    setter: str, unknown: Iterable[str], options: Iterable[str], reasons: Mapping[str, str]
) -> None:
    """Raises for the first unknown option of `setter`, with a reason or the name that was meant.

    Raises:
        OptionError: if `unknown` has a name.
    """
    options = list(options)
    for name in unknown:
        if name in reasons:
            raise OptionError(f"{setter}() does not take {name}: {reasons[name]}")
        meant = names_meant(name, options)
        hint = f"Did you mean {' or '.join(meant)}? " if meant else ""
        has = f"It has: {', '.join(options)}." if options else "It has none."
        raise OptionError(f"{setter}() has no option {name!r}. {hint}{has}")
