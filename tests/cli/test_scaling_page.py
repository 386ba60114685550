"""The tables of docs/scaling.md are what the commands print that the page shows."""

import pathlib
import re

import pytest
from click.testing import CliRunner

from millrace.tools.cli.main import main

PAGE = (pathlib.Path(__file__).parent.parent.parent / "docs" / "scaling.md").read_text()
PARTS = ("work", "bubble", "transfers", "dispatch", "gradient sum", "update")
(COMMON,) = re.findall(r"^    \$ millrace (simulate --summary .*) OPTIONS$", PAGE, re.MULTILINE)
ROWS = re.findall(r"^\| `(--stages .*?)` \|.*$", PAGE, re.MULTILINE)
FEW = 5_000  # forwards


def forwards(options):
    stages, micro_batches = re.findall(r"--(?:stages|micro-batches) (\d+)", options)
    return int(stages) * int(micro_batches)


def row(options):
    """The row of a table: the options, the time, and the share of each part."""
    result = CliRunner().invoke(main, [*COMMON.split(), *options.split()], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.stderr
    found = dict(re.findall(r"^ ([^\d\n]+?) +[\d.e+-]+ +([\d.]+%) *$", result.stdout, re.MULTILINE))
    (total,) = re.findall(r"^ total +(\S+)", result.stdout, re.MULTILINE)
    shares = [found.get(part, "") for part in PARTS]
    return f"| `{options}` | {float(total):.3f} s | {' | '.join(shares)} |"


def test_the_page_has_rows_for_8_64_and_512_devices():
    stages = {re.match(r"--stages (\d+)", options)[1] for options in ROWS}
    assert {"8", "64", "512"} <= stages


@pytest.mark.parametrize("options", [each for each in ROWS if forwards(each) <= FEW])
def test_a_small_row_is_what_the_command_prints(options):
    assert row(options) in PAGE.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("options", [each for each in ROWS if forwards(each) > FEW])
def test_a_large_row_is_what_the_command_prints(options):
    assert row(options) in PAGE.splitlines()
