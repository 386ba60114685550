"""Pytest marks for what a test compiles: how many programs, how large ones, and which.

    @pytest.mark.max_compiles(1)         at most one executable is made while the test runs
    @pytest.mark.max_peak_bytes("2GB")   none of them needs more than that on a device
    @pytest.mark.golden_program("a.txt") they compute what the file beside the test says

Pytest loads this file in every project of the environment, so it imports pytest alone. millrace,
which chooses Keras's backend and takes seconds to import, comes with the first test that is marked.
"""

import pathlib
import re
from collections.abc import Generator
from typing import Any

import pytest

_MARKERS = (
    "max_compiles(n): fails a test that makes more than n executables, found in a cache or not",
    "max_peak_bytes(size): fails a test with an executable that needs more on a device than size, "
    'in bytes or as text such as "2GB"',
    "golden_program(file): fails a test whose executables do not compute what the file describes, "
    "which lies beside the test and is written by --update-golden",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that writes the files of `golden_program`."""
    parser.getgroup("millrace").addoption(
        "--update-golden",
        action="store_true",
        help="write the files of @pytest.mark.golden_program from what the tests compile now",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marks known."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuses marks with wrong arguments before the test's fixtures are made."""
    _limits(item)
    _golden_path(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Listens to the compilations of a marked test. Its own error comes before theirs."""
    most, peak = _limits(item)
    golden = _golden_path(item)
    if most is None and peak is None and golden is None:
        return (yield)
    from millrace.cache import listeners  # not in projects without the marks
    from millrace.compiling.log import all_observers

    records: list[Any] = []
    executables: list[Any] = []
    listener: Any = listeners.ProgramListener()
    listener.compiled = records.append
    listeners.register_listener(listener)
    if golden is not None:
        all_observers.append(executables.append)
    observers = all_observers[-1:]
    try:
        result = yield
    finally:
        listeners.unregister_listener(listener)
        if golden is not None:
            all_observers.remove(observers[0])
    made = [record for record in records if record.is_executable]
    complaints = [*_too_many(made, most), *_too_large(made, peak)]
    if golden is not None:
        complaints += _other_program(item, golden, executables)
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


def _golden_path(item: pytest.Item) -> pathlib.Path | None:
    """Returns the file that describes what a test compiles; None without the mark."""
    right = '@pytest.mark.golden_program("train_step.txt")'
    name = _argument(item, "golden_program", right)
    if name is None:
        return None
    if not isinstance(name, str) or not name or name.endswith("/"):
        pytest.fail(
            "golden_program takes the name of a file, relative to that of the test. "
            f"Received: {name!r}. Set {right}.",
            pytrace=False,
        )
    call = getattr(item, "callspec", None)
    if call is not None and "{id}" not in name:
        path = pathlib.PurePath(name)
        pytest.fail(
            f"golden_program({name!r}) is one file, and this test runs with several parameters, "
            f"here [{call.id}]. Give each its own: "
            f'@pytest.mark.golden_program("{path.with_stem(path.stem + "-{id}")}").',
            pytrace=False,
        )
    if call is not None:
        name = name.replace("{id}", re.sub(r"[^\w.-]+", "_", call.id))
    path = item.path.parent / name
    others = [
        each for each in item.session.items if each is not item and _has_file(each, path, name)
    ]
    if others:
        pytest.fail(
            f"golden_program({name!r}) is on {others[0].nodeid}, too. Give each test a file of its "
            "own.",
            pytrace=False,
        )
    return path


def _has_file(item: pytest.Item, path: pathlib.Path, name: str) -> bool:
    mark = item.get_closest_marker("golden_program")
    return mark is not None and mark.args == (name,) and item.path.parent / name == path


def _other_program(item: pytest.Item, path: pathlib.Path, executables: list[Any]) -> list[str]:
    from millrace.errors import DataError  # not in projects without the marks
    from millrace.operations import golden, golden_difference

    command = f"pytest --update-golden {item.nodeid!r}"
    made = golden.describe(executables)
    if not made.programs:
        return [
            f"golden_program({path.name!r}): the test made no executable. Train, evaluate or "
            "predict with the model in the test itself, not in a fixture of a larger scope."
        ]
    if item.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(golden.write(made), encoding="utf-8")
        return []
    if not path.exists():
        return [f"{path} is not there. Write it, read it, and commit it:\n\n    {command}"]
    try:
        expected = golden.read(path.read_text(encoding="utf-8"))
    except DataError as error:
        return [f"{path}: {error}\n\n    {command}"]
    lines = golden_difference.differences(expected, made)
    if not lines:
        return []
    text = "\n".join(lines)
    return [
        f"What the test compiles is not what {path.name} describes:\n\n{text}\n\n"
        f"If that is what you meant, write the file anew:\n\n    {command}"
    ]
