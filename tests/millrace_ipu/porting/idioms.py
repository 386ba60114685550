"""Idioms of IPU programs: what such programs write, each with a test that runs it.

    @idiom("Imports", "`keras.ipu` as an attribute, after `import keras`")
    def test_keras_ipu_is_an_attribute(program): ...

`python tests/millrace_ipu/porting/idioms.py` writes the list of all idioms into docs/porting.md,
between its two markers.
"""

import ast
import pathlib
from typing import NamedTuple

TESTS = pathlib.Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "porting.md"
BEGIN, END = "<!-- idioms: begin -->", "<!-- idioms: end -->"
GROUPS = (
    "Imports",
    "Devices",
    "Strategies",
    "Steps and batches",
    "Models",
    "Layers",
    "Training",
    "Data",
    "TensorFlow",
    "Pipelines",
    "Accumulation",
    "Replicas",
    "Queues",
    "Inspection",
    "Logs and caches",
    "Processes",
    "Saving",
    "Unsupported, with an error that says what to write",
)


def idiom(group, text):
    """Marks the test of an idiom; several marks list several idioms.

    Args:
        group: one of `GROUPS`.
        text: what programs write, in Markdown, on one line.
    """
    assert group in GROUPS, group
    assert not {"\n", "|"} & set(text), text
    return lambda test: test


class Idiom(NamedTuple):
    """An idiom and its test."""

    group: str
    text: str
    file: str
    test: str


def idioms():
    """Returns the idioms of all tests, in the order of groups, files and lines."""
    listed = []
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if "@idiom(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "idiom":
                    group, words = map(ast.literal_eval, mark.args)
                    listed.append(Idiom(group, words, path.name, node.name))
    return sorted(listed, key=lambda each: GROUPS.index(each.group))


def table():
    """Returns the list as Markdown."""
    rows = ["| | idiom | test |", "|---|---|---|"]
    for number, each in enumerate(idioms(), 1):
        rows.append(f"| {number} | {each.group}: {each.text} | `{each.file}`, `{each.test}` |")
    return "\n".join(rows)


def page(text):
    """Returns the text of the page with a new list."""
    head, after = text.split(BEGIN)
    _, tail = after.split(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(f"{len(idioms())} idioms")
