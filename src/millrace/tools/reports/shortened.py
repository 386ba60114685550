"""Fields of records as a page has them: JSON, with texts of users cut that are too long for it."""

from typing import Any, cast

from millrace.base.records.codec import encode

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


def fields_of(record: object, *names: str) -> dict[str, Any]:
    """Returns some fields of a record, by name."""
    return {name: shortened(encode(getattr(record, name))) for name in names}
