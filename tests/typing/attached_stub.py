"""The stub of `millrace.Attached`, made from the table of options. After a change there, run

python tests/typing/attached_stub.py
"""

import inspect
import pathlib
import re
import textwrap
import types
import typing

from millrace.api.strategy import attached
from millrace.api.strategy.methods import METHODS
from millrace.run.pipelines.assignment.lists import AnyAssignment
from millrace.run.precompile.described_batch import BatchDescription

STUB = pathlib.Path(attached.__file__).with_suffix(".pyi")
HEAD = f'''"""What type checkers see of attached models. tests/typing/attached_stub.py writes it."""

# ruff: noqa: E501 - one line for each argument: editors wrap them
# fmt: off

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras

from millrace.base.options import MetricReduction, RecomputationMode, Reduction
from millrace.run.pipelines.assignment.lists import AnyAssignment
from millrace.run.precompile.described_batch import BatchDescription

class Attached(keras.Model):
    """{inspect.getdoc(attached.Attached)}

    An argument of a setter that is left out, or None, keeps the value in force. `help()` of a
    method names its errors, too.
    """
'''


def stub() -> str:
    return HEAD + "".join(map(method_text, METHODS))


def method_text(method) -> str:
    signature = inspect.signature(method)
    parameters = ["self"]
    for each in signature.parameters.values():
        if each.name in ("controller", "unknown"):
            continue
        if each.kind is each.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        default = "" if each.default is each.empty else f" = {each.default!r}".replace("'", '"')
        parameters.append(f"{each.name}: {type_text(each.annotation)}{default}")
    result = type_text(signature.return_annotation)
    line = f"    def {method.__name__}({', '.join(parameters)}) -> {result}:"
    if len(parameters) > 6:
        lines = "".join(f"        {each},\n" for each in parameters)
        line = f"    def {method.__name__}(\n{lines}    ) -> {result}:"
    return f'\n{line}\n        """{docstring(method)}"""\n'


def type_text(annotation) -> str:
    """The annotation as one writes it: without modules, and with the names of aliases."""
    if isinstance(annotation, str):
        return annotation.replace(BatchDescription, "BatchDescription").replace("'", '"')
    if annotation in (None, types.NoneType):
        return "None"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return " | ".join(map(type_text, typing.get_args(annotation)))
    text = repr(annotation).replace(repr(AnyAssignment), "AnyAssignment").replace("'", '"')
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)


def docstring(method) -> str:
    text = inspect.getdoc(method)
    text = re.sub(r"\n +(controller: of the model whose|\*\*unknown: refused,) .*", "", text)
    text = re.sub(r"\n {8,}", " ", text)  # what is wrapped below the line of an argument
    # What all of them say is said once, above.
    text = re.sub(r"\n\n(Raises:|An(other)? argument left)(.|\n)*", "", text).rstrip()
    text = textwrap.indent(text, " " * 8).lstrip()
    return text + "\n        " if "\n" in text else text


if __name__ == "__main__":
    STUB.write_text(stub())
