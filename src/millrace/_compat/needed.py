"""Private names of Keras: those that are gone are named at import."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from millrace.errors import MillraceError


def check_names(needed: Mapping[Any, Sequence[str]]) -> None:
    """Looks for the names that millrace builds on.

    Raises:
        MillraceError: if the installed Keras has not got one of them.
    """
    for owner, names in needed.items():
        for name in names:
            if not hasattr(owner, name):
                raise MillraceError(
                    f"keras {keras.__version__} has no {owner.__name__}.{name}, which millrace "
                    "builds on. Install a version from 3.13 to 3.15."
                )
