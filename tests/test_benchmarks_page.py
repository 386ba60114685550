"""docs/benchmarks.md and the table in README hold what `benchmarks/results` says, and no more."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"

HEADER = """\
# One epoch
machine   Some Processor, 2 cores; device cpu
versions  python 3.11.7, jax 0.10.2, keras 3.15.1
date      2026-01-01

tiny: 8 steps of 8 rows
  keras, steps_per_execution=1            212.1 us/step   (193.1-213.4, n=9)

"""


@pytest.fixture(scope="module")
def scripts():
    """The modules `figures`, `bars` and `page`, as `python benchmarks/page.py` finds them."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import figures
        import page

        yield page, figures
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in set(sys.modules) - before:
            del sys.modules[name]


@pytest.fixture
def section(scripts, monkeypatch):
    """Makes the page know one benchmark only, `loop`, with the reasons given."""
    page, figures = scripts

    def write(folder, lines, misses, device="cpu", is_grid=False):
        folder.joinpath(f"2026-01-01-loop-{device}.txt").write_text(HEADER + lines)
        words = page.Section("Loop", "Text.", "", misses, is_grid)
        monkeypatch.setattr(page, "SECTIONS", {"loop": words})
        return page.page(figures.results(folder, ("loop",)))

    return write


def test_the_pages_are_what_the_results_say():
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "page.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_line_with_a_bar_is_on_the_page(scripts):
    page, figures = scripts
    text = (ROOT / "docs" / "benchmarks.md").read_text()

    def is_there(figure, section):
        row, _, _ = figure.name.partition(": ")
        if section and section.is_grid:
            (line,) = re.findall(rf"^\| {re.escape(row)} \|.*$", text, re.MULTILINE)
            return figure.text in line
        return f"| {figure.name} | {figure.text} | {figure.bar} |" in text

    for result in figures.results():
        lines = re.findall(r"^.*\bclaim\b.*$", result.path.read_text(), re.MULTILINE)
        found = [figure for line in lines for figure in figures.parse(line)]
        assert len(found) >= len(lines)
        section = page.SECTIONS.get(result.script)
        assert [figure.name for figure in found if not is_there(figure, section)] == []


@pytest.mark.parametrize(
    ("figure", "bar", "met"),
    [
        ("1.25x (1.18-1.35)", "<= 1.25x", True),
        ("1.26x (1.18-1.35)", "<= 1.25x", False),
        ("1.30x (1.18-1.35)", ">= 1.25x", True),
        ("0.98x (0.97-0.99)", "1.00x", False),
        ("0.98x (0.97-1.01)", "1.00x", True),
        ("4.00x", "= 4.00x", True),
        ("4.01x", "= 4.00x", False),
        ("1.04x (0.9-1.2)", "0.97-1.03", False),
        ("0", "0", True),
        ("0.44%", "<= 1%", True),
        ("43.9 us (41.9-45.5)", "<= 60 us", True),
        ("1.10x (1.00-1.25)", "", None),
    ],
)
def test_a_bar_is_met_or_missed(scripts, figure, bar, met):
    _, figures = scripts
    printed = figure.replace(")", ", n=9; of the best times 0.5)")
    (found,) = figures.parse(f"a / b = {printed}" + (f"   claim {bar}" if bar else ""))
    assert (found.name, found.text, found.bar, found.met) == ("a / b", figure, bar, met)


@pytest.mark.parametrize("line", ["  keras, 1     212.1 us/step   (193.1-213.4)", "tiny: 8 steps"])
def test_times_and_headings_are_no_figures(scripts, line):
    _, figures = scripts
    assert figures.parse(line) == []


@pytest.mark.parametrize("line", ["loss 3   claim <= 2", "loss = 3x   claim at most 2x"])
def test_a_bar_that_cannot_be_read_is_an_error(scripts, line):
    _, figures = scripts
    with pytest.raises(ValueError, match=re.escape(line)):
        figures.parse(line)


def test_a_miss_needs_a_reason(section, tmp_path):
    line = "tiny: a / b = 1.30x (1.18-1.35, n=9)   claim <= 1.25x\n"
    with pytest.raises(ValueError, match=r"misses \['tiny: a / b'\]. Say why in SECTIONS"):
        section(tmp_path, line, {})
    text = section(tmp_path, line, {"tiny: .*": "The sky was cloudy."})
    assert "| tiny: a / b | 1.30x (1.18-1.35) | <= 1.25x | **missed** |" in text
    assert "**Missed:** The sky was cloudy." in text
    assert "0 of 1 met, 1 missed" in text


def test_a_reason_needs_a_miss(section, tmp_path):
    line = "tiny: a / b = 1.20x (1.18-1.35, n=9)   claim <= 1.25x\n"
    with pytest.raises(ValueError, match=r"misses nothing named 'tiny: \.\*'"):
        section(tmp_path, line, {"tiny: .*": "The sky was cloudy."})


def test_results_of_a_gpu_have_their_own_part(section, tmp_path):
    assert "Nothing was measured yet" in section(tmp_path, "a = 1.20x\n", {})
    text = section(tmp_path, "a = 1.10x   claim <= 1.05x\n", {}, device="some-gpu")
    assert "Nothing was measured yet" not in text
    gpu = text[text.index("## On GPUs") :]
    assert "### some-gpu, 2026-01-01" in gpu
    assert "| a | 1.10x | <= 1.05x | **missed** |" in gpu


def test_the_newest_result_counts(scripts, tmp_path):
    _, figures = scripts
    for day in ("02", "01"):
        path = tmp_path / f"2026-01-{day}-loop-cpu.txt"
        path.write_text(HEADER + f"a = {day}x\n")
    (result,) = figures.results(tmp_path, ("loop",))
    assert result.date == "2026-01-02"


def test_each_processor_keeps_its_newest_result(section, tmp_path):
    other = HEADER.replace("Some Processor", "Another")
    tmp_path.joinpath("2025-12-31-loop-cpu.txt").write_text(other + "a = 2.00x\n")
    tmp_path.joinpath("2025-12-30-loop-cpu.txt").write_text(other + "a = 3.00x\n")
    text = section(tmp_path, "a = 1.00x   claim >= 2x\n", {"a": "The sky was cloudy."})
    assert text.index("| a | 1.00x |") < text.index("Some Processor") < text.index("| a | 2.00x |")
    assert "Another, 2 cores" in text
    assert "3.00x" not in text


def test_a_grid_has_a_column_for_each_peer(section, tmp_path):
    lines = (
        "tiny, fit: millrace = 5.0 us (4.0-6.0, n=5)\n"
        "tiny, fit: keras = 9.00x (8.00-9.50, n=5)   claim >= 1x\n"
        "mlp, fit: millrace = 50.0 us (49.0-60.0, n=5)\n"
        "mlp, fit: torch = 0.90x (0.80-0.95, n=5)   claim >= 1x\n"
    )
    text = section(tmp_path, lines, {"mlp, fit: torch": "The sky was cloudy."}, is_grid=True)
    table = (
        "|  | millrace | keras | torch |\n"
        "| --- | --: | --: | --: |\n"
        "| tiny, fit | 5.0 us (4.0-6.0) | 9.00x (8.00-9.50) |  |\n"
        "| mlp, fit | 50.0 us (49.0-60.0) |  | **0.90x (0.80-0.95)** |\n"
    )
    assert table in text
    assert "**Missed:** The sky was cloudy." in text


def test_a_result_needs_words(scripts, tmp_path):
    page, figures = scripts
    tmp_path.joinpath("2026-01-01-loop-cpu.txt").write_text(HEADER + "a = 1.20x\n")
    with pytest.raises(ValueError, match=r"'loop'.*no section. Add it to SECTIONS"):
        page.page(figures.results(tmp_path, ("loop",)))


def test_every_section_is_of_a_script(scripts):
    page, _ = scripts
    assert [name for name in page.SECTIONS if not (BENCHMARKS / f"{name}.py").exists()] == []


def test_the_table_in_the_readme_has_eight_rows_and_no_empty_cell():
    table = (ROOT / "README.md").read_text().split("<!-- capabilities -->")[1]
    rows = re.findall(r"^\| (.*) \|$", table, re.MULTILINE)[1:]
    cells = [row.split(" | ") for row in rows]
    assert len(cells) == 8
    for _, peer, figures, processors in cells:
        assert peer
        assert re.search(r"\d times as fast", figures)
        assert re.search(r"(AMD|Intel) 20\d\d-", processors)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_make_bench_runs_benchmarks_only():
    """It takes the files with an underscore in their names, and gives them --small."""
    scripts = BENCHMARKS.glob("[a-z]*_*.py")
    assert [p.name for p in scripts if "harness.arguments(" not in p.read_text()] == []
