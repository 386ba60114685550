"""JSON of files that anybody may have written, read with one kind of error."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a text of JSON.

    Raises:
        ValueError: if it is none, is not in UTF-8, or is nested too deeply for Python.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
