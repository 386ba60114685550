"""Pytest marks for what a test compiles: how many programs, and how large ones.

    @pytest.mark.max_compiles(1)       at most one executable is made while the test runs
    @pytest.mark.max_peak_bytes("2GB") none of them needs more than that on a device

Pytest loads this file in every project of the environment, so it imports pytest alone. millrace,
which chooses Keras's backend and takes seconds to import, comes with the first test that is marked.
"""

from collections.abc import Generator
from typing import Any

import pytest

_MARKERS = (
    "max_compiles(n): fails a test that makes more than n executables, found in a cache or not",
    "max_peak_bytes(size): fails a test with an executable that needs more on a device than size, "
    'in bytes or as text such as "2GB"',
)


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marks known."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuses marks with wrong arguments before the test's fixtures are made."""
    _limits(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Listens to the compilations of a marked test. Its own error comes before theirs."""
    most, peak = _limits(item)
    if most is None and peak is None:
        return (yield)
    from millrace.compiling.log import listeners  # not in projects without the marks

    records: list[Any] = []
    listeners.append(records.append)
    listener = listeners[-1]
    try:
        result = yield
    finally:
        listeners.remove(listener)
    made = [record for record in records if record.is_executable]
    complaints = [*_too_many(made, most), *_too_large(made, peak)]
    if complaints:
        pytest.fail("\n\n".join(complaints), pytrace=False)
    return result


def _limits(item: pytest.Item) -> tuple[int | None, int | None]:
    """Returns how many executables a test may make, and bytes; None without such a mark."""
    most = _argument(item, "max_compiles", "@pytest.mark.max_compiles(1)")
    peak = _argument(item, "max_peak_bytes", '@pytest.mark.max_peak_bytes("2GB")')
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
        pytest.fail(
            "max_compiles takes the number of executables that the test may make, 0 or more. "
            f"Received: {most!r}. Set @pytest.mark.max_compiles(1).",
            pytrace=False,
        )
    return most, None if peak is None else _bytes(peak)


def _argument(item: pytest.Item, name: str, right: str) -> Any:
    mark = item.get_closest_marker(name)
    if mark is None:
        return None
    if len(mark.args) != 1 or mark.kwargs or mark.args[0] is None:
        given = [*map(repr, mark.args), *(f"{key}={value!r}" for key, value in mark.kwargs.items())]
        pytest.fail(
            f"{name} takes one argument. Received: {name}({', '.join(given)}). Set {right}.",
            pytrace=False,
        )
    return mark.args[0]


def _bytes(size: Any) -> int:
    from millrace.errors import OptionError  # not in projects without the marks
    from millrace.options import bytes_or_share

    try:
        nbytes = bytes_or_share(size)
    except OptionError:
        nbytes = 0.0
    if isinstance(nbytes, float):
        pytest.fail(
            "max_peak_bytes takes the bytes that one device may need, as a whole number or as text "
            f'such as "2GB" or "800 MiB". Received: {size!r}. '
            'Set @pytest.mark.max_peak_bytes("2GB").',
            pytrace=False,
        )
    return nbytes


def _too_many(records: list[Any], most: int | None) -> list[str]:
    from millrace.compiling.log import sentence  # not in projects without the marks

    if most is None or len(records) <= most:
        return []
    made = "1 executable was" if len(records) == 1 else f"{len(records)} executables were"
    lines = [f"{number}. {sentence(record)}" for number, record in enumerate(records, 1)]
    return ["\n".join([f"{made} made, and max_compiles allows {most}:", *lines])]


def _too_large(records: list[Any], most: int | None) -> list[str]:
    large = [record for record in records if most is not None and record.peak_bytes > most]
    if not large:
        return []
    return [
        "\n".join(
            [
                f"max_peak_bytes allows {most:,} bytes on a device, and more is needed by:",
                *(
                    f"{record.program} of {record.model!r} for {record.batch}: "
                    f"{record.peak_bytes:,} bytes"
                    for record in large
                ),
                "strategy.memory_report(model, batch_spec) shows what they are needed for, and "
                "what would need fewer.",
            ]
        )
    ]
