"""Findings for the habits of Keras 2 (keras2.py), each with the edit that it has.

keras.optimizers.SGD(lr=0.1)         lr= of keras.optimizers.SGD  ->  learning_rate=
model.load_weights("w").expect_...   .expect_partial()  ->  nothing: load_weights returns nothing
"""

import ast
import pathlib
from collections.abc import Callable, Iterator

from millrace.porting import keras2
from millrace.porting.arguments import (
    argument,
    as_tuple,
    ending,
    keyword_of,
    remove,
    rename,
    rename_method,
    with_suffix,
)
from millrace.porting.finding import Edit, Finding, end_of, replaced, start_of
from millrace.porting.keras2 import Habit, habits_of
from millrace.porting.signatures import parameters_of, value_of
from millrace.porting.source_text import SourceText

Evaluate = Callable[[ast.expr], object]

_WEIGHTS = ".weights.h5"
_READ = {"load_weights": (".h5", ".keras"), "save_weights": (_WEIGHTS,)}
_MODELS = (".keras", ".h5", ".hdf5")
# The positional arguments of add_weight in Keras 2.
_OF_WEIGHTS = ("name", "shape", "dtype", "initializer", "regularizer", "trainable", "constraint")
_OF_FILES = (".save", ".save_weights", ".load_weights")
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
                found = self._of_file_name(call, habit, label)
            elif habit.edit is keras2.Edit.KEYWORD:
                found = self._of_weight_name(call, habit, label)
            elif not habit.argument:
                found = self._of_method(call, habit, label)
            else:
                found = self._of_argument(call, habit, function, label)
            findings += [] if found is None else [found]
        return findings

    def _finding(
        self, node: ast.AST, habit: Habit, what: str, *edits: Edit | None, instead: str = ""
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
        found = self._finding(value, habit, what, *edits, instead=instead)
        if is_taken and found.blocks:
            return Finding(found.line, what, found.instead, False, found.edits)
        return found

    def _is_meant(self, habit: Habit, value: ast.expr, call: ast.Call) -> bool:
        if habit.number:
            known = self._evaluate(value)
            return isinstance(known, int) and not isinstance(known, bool)
        if habit.value == "[n]":
            return isinstance(value, ast.List) and len(value.elts) == 1
        return not habit.value or ast.unparse(value) == habit.value

    def _edits(
        self, call: ast.Call, habit: Habit, keyword: ast.keyword | None, value: ast.expr
    ) -> Iterator[Edit | None]:
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

    def _period(self, keyword: ast.keyword | None) -> Iterator[Edit]:
        is_one = keyword is not None and self._evaluate(keyword.value) == 1
        if keyword is not None and is_one:
            yield replaced(keyword, 'save_freq="epoch"')

    def _of_method(self, call: ast.Call, habit: Habit, label: str) -> Finding:
        edit: Edit | None = None
        has_edit = False
        if habit.edit is keras2.Edit.RENAME:
            edit, has_edit = rename_method(call, habit.to), True
        elif label in (".expect_partial()", ".assert_consumed()"):
            assert isinstance(call.func, ast.Attribute)
            edit, has_edit = Edit(end_of(call.func.value), end_of(call), ""), True
        elif label == ".get_shape()":
            assert isinstance(call.func, ast.Attribute)
            edit, has_edit = Edit(end_of(call.func.value), end_of(call), ".shape"), True
        elif label == ".as_list()" and isinstance(call.func, ast.Attribute):
            written = self._written(call.func.value)
            is_shape = written.endswith((".shape", ".get_shape()"))
            edit, has_edit = (replaced(call, f"list({written})") if is_shape else None), is_shape
        return self._finding(call, habit, label, *([edit] if has_edit else []))

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
        known = self._evaluate(value)
        name = ending(value) if ending(value) is not None else known
        if not isinstance(name, str) or name.endswith(accepted) or "://" in name:
            return None
        if label == ".load_weights()" and pathlib.PurePath(name).suffix in (".npy", ".pkl", ".pt"):
            return None
        edit = with_suffix(value, _missing(name, suffix), self._source)
        what = f"{habit.argument}={self._written(value)} of {label}"
        return self._finding(value, habit, what, edit, instead=f"a file name in {suffix}")

    def _of_weight_name(self, call: ast.Call, habit: Habit, label: str) -> Finding | None:
        first = call.args[0] if call.args else None
        known = None if first is None else self._evaluate(first)
        is_name = isinstance(known, str) or isinstance(first, ast.JoinedStr)
        if first is None or not is_name or len(call.args) > len(_OF_WEIGHTS):
            return None
        edits = [
            Edit(start_of(value), start_of(value), f"{name}=")
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
