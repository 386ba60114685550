"""Texts of users that are longer than a page can show."""

from typing import Any, cast

LONGEST = 400  # characters


def shortened(value: Any, longest: int = LONGEST) -> Any:
    """Returns a value of JSON with its long texts cut: the begin, the end, and the count."""
    if isinstance(value, str):
        if len(value) <= longest:
            return value
        half = longest // 2 - 20
        left_out = len(value) - 2 * half
        return f"{value[:half]} … {left_out} characters … {value[-half:]}"
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return {shortened(key, longest): shortened(each, longest) for key, each in items}
    if isinstance(value, list):
        return [shortened(each, longest) for each in cast(list[Any], value)]
    return value
