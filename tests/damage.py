"""Damage to files, to their bytes and to the values in JSON, and readers that get such files."""

import contextlib
import io
import json
import logging
import pathlib
import random
import resource
import signal

import hypothesis
import pytest
from hypothesis import strategies as st

from millrace.errors import MillraceError

SECONDS = 20  # for one file; a usual one takes some milliseconds
MEMORY = 3 << 30  # bytes that a reader may allocate
CASES = 12  # of each reader, in the usual tests
MANY = 1600
counted = {}

both = pytest.mark.parametrize(
    "cases", [pytest.param(CASES, id="few"), pytest.param(MANY, marks=pytest.mark.slow, id="many")]
)

MARK = "@@"  # in place of a value, until the text is written

# As texts, since Python writes no such JSON.
STRANGE = (
    "null", "true", "false", "0", "-1", "1", "2", "0.5", "1e308", "-1e308", "1e999", "-1e999",
    "NaN", "Infinity", "2147483648", "9007199254740993", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", f"1{'0' * 400}", f"-1{'0' * 400}", "9" * 5000,
    "1000000000000",
    '""', '"x"', '"nan"', '"inf"', '"\\ud800"', '"\\u0000"', '"\\u001b[31m"', '"../../etc/passwd"',
    f'"{"x" * 3000}"', "[]", "{}", "[[]]", "[null]", "[0]", '["x"]', '{"a": 1}', '{"": null}',
    "[" * 60 + "]" * 60, "[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000,
    '{"a":' * 2000 + "1" + "}" * 2000, "[" * 5000,
)  # fmt: skip


def damaged_bytes(data: bytes, luck: random.Random) -> bytes:
    """Returns other bytes: cut, flipped, moved, doubled, or of no origin."""
    result = bytearray(data)
    for _ in range(luck.choice((1, 1, 1, 2, 5))):
        at = luck.randrange(len(result) + 1)
        match luck.randrange(9):
            case 0:
                result = result[:at]
            case 1 if at < len(result):
                result[at] ^= 1 << luck.randrange(8)
            case 2 if at < len(result):
                result[at] = luck.choice((0, 0xFF, 0x7F, 0x80, 0x0A, luck.randrange(256)))
            case 3:
                result[at:at] = luck.randbytes(luck.choice((1, 4, 100)))
            case 4:
                begin = luck.randrange(len(result) + 1)
                result[at:at] = result[begin : begin + luck.choice((1, 8, 64, 1000))]
            case 5:
                del result[at : at + luck.choice((1, 2, 8, 100))]
            case 6:  # a number of four or eight bytes: a length, say
                size = luck.choice((4, 8))
                result[at : at + size] = luck.choice((b"\xff", b"\x7f", b"\x00")) * size
            case 7 if luck.random() < 0.2:
                result = bytearray(luck.randbytes(luck.choice((0, 1, 30, 300))))
            case _:
                result += luck.choice((b"\n", b"\0", b"[", b"{", b"\xff\xfe", b"\xe2\x80\xa8"))
    return bytes(result)


def damaged_json(value: object, luck: random.Random) -> str:
    """Returns a text of JSON with a few values replaced, removed, doubled or exchanged."""
    value = json.loads(json.dumps(value))
    strange: list[str] = []
    for _ in range(luck.choice((1, 1, 1, 2, 4))):
        value = _damaged(value, luck, strange)
    text = json.dumps(value)
    for each in strange:
        text = text.replace(f'"{MARK}"', each, 1)
    return text.replace(f'"{MARK}"', "null")


def _damaged(value: object, luck: random.Random, strange: list[str]) -> object:
    places = list(_places(value))
    if not places or luck.random() < 0.03:
        strange.append(luck.choice(STRANGE))
        return MARK
    # Deep places are many: of thousands of spans one is like the other.
    depth = luck.choice(sorted({depth for _, _, depth in places}))
    owner, key, _ = luck.choice([place for place in places if place[2] == depth])
    match luck.randrange(8):
        case 0:
            del owner[key]
        case 1:
            _, _, _ = place = luck.choice(places)
            owner[key] = json.loads(json.dumps(place[0][place[1]]))
        case 2 if isinstance(owner[key], list):
            owner[key] = owner[key] * luck.choice((2, 3))
        case 3 if isinstance(owner[key], list):
            owner[key] = owner[key][: luck.randrange(len(owner[key]) + 1)]
        case 4 if isinstance(owner[key], int | float):
            owner[key] = luck.choice((-owner[key], owner[key] + 1, owner[key] * 1000, 10**12))
        case 5 if isinstance(owner, dict):
            owner[luck.choice(("", "x", "format", "version", "kind"))] = owner.pop(key)
        case _:
            strange.append(luck.choice(STRANGE))
            owner[key] = MARK
    return value


def _places(value, depth=0):
    items = enumerate(value) if isinstance(value, list) else ()
    items = list(value.items()) if isinstance(value, dict) else items
    for key, each in items:
        yield value, key, depth
        yield from _places(each, depth + 1)


@contextlib.contextmanager
def limited():
    """Makes an error of a reader that waits, or that allocates a lot."""

    def too_long(*_):
        raise AssertionError(f"a reader takes longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    sizes = pathlib.Path("/proc/self/statm")
    if sizes.exists():  # not on every system
        most = int(sizes.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def is_printable(text: str) -> bool:
    """Whether a terminal shows a text, and does nothing else."""
    return all(each == "\n" or each.isprintable() for each in text)


@contextlib.contextmanager
def printable_log():
    """Makes an error of text in the log on which a terminal would act, or which it cannot show."""

    class Handler(logging.Handler):
        def emit(self, record):
            assert is_printable(record.getMessage())

    handler = Handler()
    logger = logging.getLogger("millrace")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def examine(name, cases, read, refusals=(MillraceError,), mentions=None):
    """Calls a reader with a source of randomness, for each case."""
    outcomes = {"read": 0, "refused": 0}

    @hypothesis.settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(st.integers(0, 2**64 - 1))
    def case(seed):
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            read(random.Random(seed))
            outcomes["read"] += 1
        except refusals as error:
            outcomes["refused"] += 1
            text = str(error)
            assert mentions is None or mentions in text
            assert len(text) < 5000
            assert is_printable(text)

    with limited(), printable_log():
        case()
    number = sum(outcomes.values())
    counted[name, cases] = number
    assert number >= cases
    in_all = sum(counted.values())
    print(f"{name}: {number} cases, {outcomes['refused']} refused; {in_all} in all")


def quiet(function, *arguments):
    """Returns what a function prints."""
    text = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(text):
        result = function(*arguments)
    text.flush()
    printed = text.buffer.getvalue().decode()
    assert "\x1b[31m" not in printed, "a terminal would act on the content of a file"
    return result
