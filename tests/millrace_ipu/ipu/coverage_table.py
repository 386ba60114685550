"""The table of docs/porting.md: features of the IPU's programming model, and their tests.

A test named `test_f40_...` tests feature 40, and `test_f40_f41_...` both. `python
tests/millrace_ipu/ipu/coverage_table.py` writes the table between its two markers, and `--check`
fails where it differs from the tests.
"""

import argparse
import ast
import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "porting.md"
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
NAME = re.compile(r"test((?:_f\d\d)+)_")

# Features that differ from the IPU's, or are tested in part.
BUT = {
    5: "losses are equal for any number of checkpoints where the last layer ignores all but the "
    "last slice: its size depends on their number",
    14: "means are taken of sums; `running_mean` is the one that a float16 accumulator needs",
    54: "another `repeat_count` compiles nothing: it is not part of a program",
    64: "the files of a report are records and a page, besides `framework.json`; PopVision's are "
    "not written",
    66: "one file for each executable, with another name",
    69: "switches are counted, and load nothing",
}
TITLES = {
    1: "`RecomputationCheckpoint` layer",
    2: "`recomputation_checkpoint` in pipeline stages",
    3: "Recomputation: its switch, modes and schedules",
    4: "Activations that backward keeps, and those that it recomputes",
    5: "The program with the split LSTM",
    6: "A report of what is live, step by step",
    7: "`IPUConfig`: choosing devices, checked options",
    8: "`IPUStrategy`, its scope and `run`",
    9: "Methods that a scope adds to models, and overrides that it refuses",
    10: "Data for `fit`",
    11: "`fit`, `evaluate` and `predict` on one device",
    12: "`steps_per_execution`",
    13: "Options of gradient accumulation",
    14: "How gradients are added, with every option",
    15: "Pipelines of Sequential models",
    16: "`PipelineStage` scopes",
    17: "Stages of functional models: reading and changing them",
    18: "The summary of stages",
    19: "Nested and subclassed models in pipelines",
    20: "Shared layers, and layers with state, in pipelines",
    21: "`set_pipelining_options`",
    22: "Pipelined `fit`, `evaluate` and `predict`",
    23: "Replicas of a model where there are devices for them",
    24: "Metrics of replicas",
    25: "Callbacks",
    26: "Asynchronous callbacks",
    27: "Options of a model's queues",
    28: "Saving and loading with all options",
    29: "Model classes of earlier releases",
    30: "Lines of the log that users rely on",
    31: "`loops.repeat` and `loops.while_loop`",
    32: "`ipu_compiler.compile` and scopes",
    33: "`IPUInfeedQueue`",
    34: "`IPUOutfeedQueue`: construction and enqueuing",
    35: "`IPUOutfeedQueue`: results of dequeuing",
    36: "Reading a queue while the program runs",
    37: "Replicated programs",
    38: "Cross-replica operations and optimizer",
    39: "`pipelining_ops.pipeline`",
    40: "Schedules, and numbers of micro-batches that go with them",
    41: "Arguments and results of stages",
    42: "The optimizer function of a pipeline",
    43: "Devices of stages",
    44: "Concurrent stages",
    45: "Optimizers that accumulate gradients",
    46: "The dtype of accumulated gradients",
    47: "Offloading of the optimizer's state",
    48: "Offloading of activations and accumulators",
    49: "Sharding over replicas",
    50: "`batch_serialization_iterations`",
    51: "`recomputation_mode`",
    52: "Compiler options of stages",
    53: "Contents of a pipeline's outfeed",
    54: "The other arguments of `pipeline`",
    55: "`dataset_benchmark` and `infeed_benchmark`",
    56: "The JSON of benchmarks",
    57: "`MaybeOutfeedQueue`",
    58: "`Outfeed` layer",
    59: "`MaybeOutfeed` layer",
    60: "`OutfeedOptimizer`",
    61: "`OutfeedCallback` and its output",
    62: "Filters of queues",
    63: "The program that inspects tensors, from end to end",
    64: "Making a profile",
    65: "Reading a profile",
    66: "Executables for other processes",
    67: "Compilations and loads in the log",
    68: "One strategy's scope at a time",
    69: "Alternating programs",
    70: "Another batch size is another program",
    71: "Weights and constants",
    72: "Comparing two programs",
    73: "The programs about recompilation",
    74: "Nothing is compiled while a benchmark runs",
    75: "Compiling ahead of time",
}


def tests() -> dict[int, dict[str, bool]]:
    """Returns for each feature its test files, and whether all their tests need an accelerator."""
    tested: dict[int, dict[str, bool]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        of_module = any(
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
            and _is_gpu(node.value)
            for node in tree.body
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (match := NAME.match(node.name)):
                is_gpu = of_module or any(map(_is_gpu, node.decorator_list))
                for number in map(int, re.findall(r"\d+", match[1])):
                    files = tested.setdefault(number, {})
                    files[path.name] = files.get(path.name, True) and is_gpu
    return tested


def _is_gpu(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "gpu" for each in ast.walk(node))


def missing() -> list[int]:
    """Returns the features without a test."""
    tested = tests()
    return [number for number in TITLES if number not in tested]


def table() -> str:
    """Returns the table as Markdown."""
    tested = tests()
    rows = ["| | feature | state |", "|---|---|---|"]
    for number, title in TITLES.items():
        files = [
            f"`{name}`{' (on an accelerator)' if is_gpu else ''}"
            for name, is_gpu in tested.get(number, {}).items()
        ]
        state = f"tested: {', '.join(files)}" if files else "not tested"
        if number in BUT:
            state += f"; {BUT[number]}"
        rows.append(f"| F{number} | {title} | {state} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """Returns the text of the page with a new table."""
    head, after = text.split(BEGIN)
    _, tail = after.split(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def main() -> None:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    before = PAGE.read_text()
    after = page(before)
    if parser.parse_args().check and after != before:
        sys.exit(
            "docs/porting.md is not up to date. Run "
            "python tests/millrace_ipu/ipu/coverage_table.py."
        )
    PAGE.write_text(after)
    print(f"without a test: {missing() or 'none'}")


if __name__ == "__main__":
    main()
