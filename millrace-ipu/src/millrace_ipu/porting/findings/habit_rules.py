"""Findings for the habits of Keras 2 (keras2.py), each with the edit that it has.

keras.optimizers.SGD(lr=0.1)         lr= of keras.optimizers.SGD  ->  learning_rate=
model.load_weights("w").expect_...   .expect_partial()  ->  nothing: load_weights returns nothing
"""

import ast
import dataclasses
import pathlib
from collections.abc import Callable, Iterator

from millrace_ipu.porting import keras2
from millrace_ipu.porting.findings.arguments import (
    argument,
    as_tuple,
    ending,
    keyword_of,
    remove,
    rename,
    rename_method,
    with_suffix,
)
from millrace_ipu.porting.findings.finding import Finding, TextEdit, end_of, replaced, start_of
from millrace_ipu.porting.findings.signatures import parameters_of, value_of
from millrace_ipu.porting.findings.source_text import SourceText
from millrace_ipu.porting.keras2 import Habit, habits_of

Evaluate = Callable[[ast.expr], object]

_WEIGHTS = ".weights.h5"
_READ = {"load_weights": (".h5", ".keras"), "save_weights": (_WEIGHTS,)}
_MODELS = (".keras", ".h5", ".hdf5")
# The positional arguments of add_weight in Keras 2.
_OF_WEIGHTS = ("name", "shape", "dtype", "initializer", "regularizer", "trainable", "constraint")
_OF_FILES = (".save", ".save_weights", ".load_weights")
# Calls of methods that are left out, with what takes their place.
_LEFT_OUT = {".expect_partial()": "", ".assert_consumed()": "", ".get_shape()": ".shape"}
_CHECKPOINT = "keras.callbacks.ModelCheckpoint"


class HabitRules:
    """The habits in the calls of a program.

    Args:
        source: the text of the program.
        is_served: whether `millrace run` runs it, which mends most habits.
        evaluate: returns the value of an expression; None where the text does not tell.
    """

    def __init__(self, source: SourceText, is_served: bool, evaluate: Evaluate) -> None:
        self._source, self._is_served, self._evaluate = source, is_served, evaluate

    def of_call(self, call: ast.Call, function: str, label: str, is_model: bool) -> list[Finding]:
        """Returns the findings of a call.

        Args:
            call: the call.
            function: its canonical name, or `.method`.
            label: the same, for messages.
            is_model: whether a method is one of a model: others save files, too.
        """
        if function in _OF_FILES and not is_model:
            return []
        findings: list[Finding] = []
        for habit in habits_of(function):
            if habit.edit is keras2.Edit.SUFFIX:
                finding = self._of_file_name(call, habit, label)
            elif habit.edit is keras2.Edit.KEYWORD:
                finding = self._of_weight_name(call, habit, label)
            elif not habit.argument:
                finding = self._of_method(call, habit, label)
            else:
                finding = self._of_argument(call, habit, function, label)
            findings += [] if finding is None else [finding]
        return findings

    def _finding(
        self, node: ast.AST, habit: Habit, what: str, *edits: TextEdit | None, instead: str = ""
    ) -> Finding:
        blocks = not (habit.mended and self._is_served)
        made = tuple(each for each in edits if each is not None)
        text = instead or habit.instead
        return Finding(start_of(node)[0], what, text, blocks, made if None not in edits else ())

    def _of_argument(
        self, call: ast.Call, habit: Habit, function: str, label: str
    ) -> Finding | None:
        keyword = keyword_of(call, habit.argument)
        value = argument(call, habit.argument, habit.position if habit.number else None)
        if value is None or not self._is_meant(habit, value, call):
            return None
        is_taken = not habit.number and not habit.value and _takes(function, habit.argument)
        edits = list(self._edits(call, habit, keyword, value))
        what = f"{habit.argument}= of {label}"
        if habit.number:
            what = f"{habit.argument}={self._written(value)} of {label}"
        instead = habit.instead
        if habit.argument == "period":
            edits, instead = list(self._period(keyword)), "save_freq='epoch'"
            if not edits:
                instead = f"save_freq={self._written(value)} * steps_per_epoch, in batches"
        finding = self._finding(value, habit, what, *edits, instead=instead)
        if is_taken and finding.blocks:
            return Finding(finding.line, what, finding.instead, False, finding.edits)
        return finding

    def _is_meant(self, habit: Habit, value: ast.expr, call: ast.Call) -> bool:
        if habit.number:
            constant = self._evaluate(value)
            return isinstance(constant, int) and not isinstance(constant, bool)
        if habit.value == "[n]":
            return isinstance(value, ast.List) and len(value.elts) == 1
        return not habit.value or ast.unparse(value) == habit.value

    def _edits(
        self, call: ast.Call, habit: Habit, keyword: ast.keyword | None, value: ast.expr
    ) -> Iterator[TextEdit | None]:
        if habit.number:
            yield as_tuple(call, value, self._source)
        elif keyword is not None and habit.edit is keras2.Edit.RENAME:
            yield rename(keyword, habit.to)
        elif keyword is not None and habit.edit is keras2.Edit.REMOVE:
            yield remove(keyword, self._source)
        elif habit.edit is keras2.Edit.VALUE:
            yield replaced(value, habit.to)
        elif habit.value == "[n]" and isinstance(value, ast.List):
            yield replaced(value, self._written(value.elts[0]))

    def _period(self, keyword: ast.keyword | None) -> Iterator[TextEdit]:
        is_one = keyword is not None and self._evaluate(keyword.value) == 1
        if keyword is not None and is_one:
            yield replaced(keyword, 'save_freq="epoch"')

    def _of_method(self, call: ast.Call, habit: Habit, label: str) -> Finding:
        edit = self._method_edit(call, call.func, habit, label)
        if label == ".as_list()" and ast.unparse(call.func).endswith(".get_shape().as_list"):
            habit = dataclasses.replace(habit, mended=True)  # get_shape() is TensorFlow's shape
        return self._finding(call, habit, label, *([] if edit is None else [edit]))

    def _method_edit(
        self, call: ast.Call, method: ast.expr, habit: Habit, label: str
    ) -> TextEdit | None:
        if not isinstance(method, ast.Attribute):
            return None
        if habit.edit is keras2.Edit.RENAME:
            return rename_method(method, habit.to)
        if label in _LEFT_OUT:
            return TextEdit(end_of(method.value), end_of(call), _LEFT_OUT[label])
        written = self._source.between(start_of(method.value), end_of(method.value))
        if label == ".as_list()" and written.endswith((".shape", ".get_shape()")):
            return replaced(call, f"list({written})")
        return None

    def _of_file_name(self, call: ast.Call, habit: Habit, label: str) -> Finding | None:
        value = argument(call, habit.argument, habit.position)
        if value is None:
            return None
        suffix, accepted = habit.to, _MODELS
        method = label.strip(".()")
        if method in _READ:
            accepted = _READ[method]
        if label == _CHECKPOINT:
            keyword = keyword_of(call, "save_weights_only")
            only_weights = keyword is not None and self._evaluate(keyword.value)
            suffix = _WEIGHTS if only_weights else ".keras"
            accepted = (_WEIGHTS,) if only_weights else (".keras", ".h5")
        constant = self._evaluate(value)
        name = ending(value) if ending(value) is not None else constant
        if not isinstance(name, str) or name.endswith(accepted) or "://" in name:
            return None
        if label == ".load_weights()" and pathlib.PurePath(name).suffix in (".npy", ".pkl", ".pt"):
            return None
        edit = with_suffix(value, _missing(name, suffix), self._source)
        what = f"{habit.argument}={self._written(value)} of {label}"
        return self._finding(value, habit, what, edit, instead=f"a file name in {suffix}")

    def _of_weight_name(self, call: ast.Call, habit: Habit, label: str) -> Finding | None:
        first = call.args[0] if call.args else None
        constant = None if first is None else self._evaluate(first)
        is_name = isinstance(constant, str) or isinstance(first, ast.JoinedStr)
        if first is None or not is_name or len(call.args) > len(_OF_WEIGHTS):
            return None
        edits = [
            TextEdit(start_of(value), start_of(value), f"{name}=")
            for name, value in zip(_OF_WEIGHTS, call.args, strict=False)
        ]
        what = f"{self._written(first)} as the first argument of {label}"
        return self._finding(call, habit, what, *edits, instead=f"name={self._written(first)}")

    def _written(self, node: ast.AST) -> str:
        text = self._source.between(start_of(node), end_of(node))
        return text if "\n" not in text and len(text) <= 40 else f"{text.split()[0][:36]}..."


def _takes(function: str, name: str) -> bool:
    """Whether a function takes an argument after all, such as one that it ignores."""
    value = None if function.startswith(".") else value_of(function)
    taken = None if value is None else parameters_of(value)
    return taken is not None and name in taken


def _missing(name: str, suffix: str) -> str:
    """Returns what a file name lacks: `.h5` of `model.weights`."""
    return next(suffix[n:] for n in range(len(suffix), -1, -1) if name.endswith(suffix[:n]))
