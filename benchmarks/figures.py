"""Reads the files in `results/`: the figures that the benchmarks printed, and their bars.

    tiny: keras / millrace = 21.35x (20.23-22.19, n=9)   claim >= 10x
    name                     value  low   high           bar

A file holds one or more parts, each with a title, `# ...`, and a header. Only the standard library
is needed, so that figures can be read without installing anything.
"""

import pathlib
import re
from dataclasses import dataclass

FOLDER = pathlib.Path(__file__).parent
RESULTS = FOLDER / "results"

_FIGURE = re.compile(
    r"(?P<name>\S.*?) = (?P<value>-?[\d.]+)(?P<unit>x|%| [a-z/]+|)"
    r"(?: \((?P<low>-?[\d.]+)-(?P<high>-?[\d.]+), n=\d+(?:;[^)]*)?\))?"
)
# Lines of another form than `name = value`.
_OTHERS = [
    re.compile(r"state .*, of (?P<name>which saved) (?P<value>[\d.]+)(?P<unit>)"),
    re.compile(r"(?P<name>.*, compilations:.*; later) (?P<value>\d+)(?P<unit>)"),
    re.compile(
        r"(?P<name>import millrace adds) (?P<value>[\d.]+)(?P<unit> s)"
        r" \((?P<low>[\d.]+)-(?P<high>[\d.]+), n=\d+\) to import keras"
    ),
]
# Two values arrive together, at the end of a call of two steps. So the first of them may be as old
# as the bar says when no new value arrived for one step more.
_GAP = re.compile(r"  (longest time without a new value) ([\d.]+) steps .*no value later than (.+)")
_BAR = re.compile(r"(?P<sign><=|>=|=|) ?(?P<low>[\d.]+)(?:-(?P<high>[\d.]+))?(?:x|%| \w+|)")


@dataclass(frozen=True)
class Figure:
    """One measured value, with the spread of its rounds if it has several."""

    name: str
    value: str
    unit: str = ""
    low: str | None = None
    high: str | None = None
    bar: str = ""  # as printed, such as `<= 1.25x`; empty without a bar

    @property
    def text(self) -> str:
        """The value with its unit and its spread."""
        spread = f" ({self.low}-{self.high})" if self.low else ""
        return f"{self.value}{self.unit}{spread}"

    @property
    def met(self) -> bool | None:
        """Whether the median meets the bar; None without a bar.

        A bar without a sign is a value: met if it lies within the spread.
        """
        if not self.bar:
            return None
        value, bar = float(self.value), _BAR.fullmatch(self.bar)
        assert bar, self.bar  # noqa: S101 - read() has checked it
        limit, sign = float(bar["low"]), bar["sign"]
        if bar["high"]:
            return limit <= value <= float(bar["high"])
        if sign in ("<=", ">="):
            return value <= limit if sign == "<=" else value >= limit
        low, high = float(self.low or value), float(self.high or value)
        return low <= limit <= high


@dataclass(frozen=True)
class Part:
    """The output of one run of one script."""

    title: str
    header: dict[str, str]  # machine, versions, date, note
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Result:
    """One file of results."""

    path: pathlib.Path
    date: str
    script: str  # "" if the file belongs to several scripts
    device: str
    parts: tuple[Part, ...]

    @property
    def processor(self) -> str:
        """Name of the CPU."""
        return self.parts[0].header["machine"].partition(",")[0]


def results(folder: pathlib.Path = RESULTS, scripts: tuple[str, ...] | None = None) -> list[Result]:
    """Returns the newest result of each script on each device and processor, newest first.

    Args:
        folder: of the files, `<date>-<script>-<device>.txt` or `<date>-<device>.txt`.
        scripts: names that may follow the date in a file's name; None is those beside this file.
    """
    scripts = scripts or tuple(path.stem for path in FOLDER.glob("*.py"))
    newest: dict[tuple[str, str, str], Result] = {}
    for path in sorted(folder.glob("*.txt"), reverse=True):
        result = read(path, scripts)
        newest.setdefault((result.script, result.device, result.processor), result)
    return list(newest.values())


def read(path: pathlib.Path, scripts: tuple[str, ...]) -> Result:
    """Reads one file."""
    named = re.fullmatch(r"(\d{4}-\d\d-\d\d)-(.+)", path.stem)
    if not named:
        raise ValueError(f"{path.name} is not named <date>-<script>-<device>.txt.")
    date, rest = named.groups()
    script = next((name for name in scripts if rest.startswith(f"{name}-")), "")
    device = rest.removeprefix(f"{script}-")
    return Result(path, date, script, device, tuple(_parts(path)))


def _parts(path: pathlib.Path) -> list[Part]:
    parts: list[Part] = []
    for block in re.split(r"^(?=# )", path.read_text(), flags=re.MULTILINE):
        lines = block.splitlines()
        header = dict(re.findall(r"^(machine|versions|date|note) +(.*)$", block, re.MULTILINE))
        if header:
            figures = tuple(found for line in lines for found in parse(line))
            parts.append(Part(lines[0].removeprefix("# "), header, figures))
    return parts


def parse(line: str) -> list[Figure]:
    """Returns the figures of a line; none for a row of times or a heading.

    Raises:
        ValueError: if a line has a bar and its figure or its bar cannot be read.
    """
    if gap := _GAP.fullmatch(line):
        name, value, bar = gap.groups()
        return [Figure(name, value, " steps", bar=f"<= {float(bar) + 1:g} steps")]
    text, claim, bar = line.partition("   claim")
    bar = bar.strip()
    for form in (_FIGURE, *_OTHERS):
        if found := form.fullmatch(text):
            if bar and not _BAR.fullmatch(bar):
                break
            return [Figure(**found.groupdict(), bar=bar)]
    if claim:
        raise ValueError(f"A line with a bar that cannot be read: {line!r}")
    return []
