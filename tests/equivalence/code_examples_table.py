"""Trains the code examples under a strategy and in plain Keras, and writes docs/models.md's table.

    python tests/equivalence/code_examples_table.py RESULTS.json [--compiler quick] [EXAMPLE ...]
    python tests/equivalence/code_examples_table.py RESULTS.json --table

What is done is in RESULTS.json after each example, and is not done again.
"""

import argparse
import gc
import json
import os
import pathlib
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("MILLRACE_CACHE_DIR", "off")
HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jax  # noqa: E402
from against_keras import WAYS, compare  # noqa: E402
from code_examples.catalogue import EXAMPLES  # noqa: E402

from quick_compiler import QuickCompiler  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)

PAGE = HERE.parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- code examples: begin -->", "<!-- code examples: end -->"
# A part of an error, and what the table says of it.
REASONS = {
    "does not define call()": "no `call` to cut",
    "stages update weights alone": "its step moves a copy of the weights",
    "do not support compilation": "layers that Keras cannot compile on JAX",
    "A model of 1 layer calls": "a single layer call",
}


def run(path: pathlib.Path, names: Iterable[str]) -> None:
    """Trains examples, and writes the results to a file after each."""
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        if name in results:
            continue
        found = compare(EXAMPLES[name].subject())
        results[name] = {way: asdict(result) for way, result in found.items()}
        path.write_text(json.dumps(results, indent=1))
        print(
            name, *(f"{way}: {_cell(results[name][way])}" for way in WAYS), sep="\n    ", flush=True
        )
        jax.clear_caches()
        gc.collect()


def rows(results: dict[str, Any]) -> list[str]:
    """Returns the lines of the table."""
    lines = [
        "| model | one piece | accumulated | cut | calls on each stage |",
        "|---|---|---|---|---|",
    ]
    group = ""
    for name, example in EXAMPLES.items():
        cells = [_cell(results[name][way]) for way in WAYS]
        stages = " + ".join(map(str, results[name]["cut"].get("stages", ())))
        shown = "" if example.group == group else f"{example.group}: "
        group = example.group
        lines.append(" | ".join([f"| {shown}{example.title}", *cells, f"{stages} |"]))
    return lines


def _cell(result: dict[str, Any]) -> str:
    if "error" in result:
        named = (said for part, said in REASONS.items() if part in result["text"])
        reason = next(named, result["text"])
        return f"`{result['error']}`: {reason}"
    if result["losses"] == result["updates"] == 0:
        return "0"
    return f"{_number(result['losses'])} ({_number(result['updates'])})"


def _number(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"


def page(text: str, results: dict[str, Any]) -> str:
    """Returns the page with a new table."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join([before + BEGIN, "", *rows(results), "", END + after])


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compiler", choices=["quick", "shipped"], default="shipped")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        PAGE.write_text(page(PAGE.read_text(), json.loads(arguments.results.read_text())))
        return
    compiler = QuickCompiler()
    if arguments.compiler == "quick":
        compiler.install()
        compiler.is_on = True
    run(arguments.results, arguments.names or EXAMPLES)


if __name__ == "__main__":
    main()
