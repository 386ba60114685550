"""Labels for the arguments and results of a function's program, from its variables.

changed, fixed, arrays  ->  result, tapped, new, iterations      api/own_loops/program.py
"""

import jax
import keras

from millrace.programs.steps.program import FunctionSource
from millrace.programs.steps.scopes import UPDATE
from millrace.run.memory.labels import (
    ProgramLabels,
    ValueLabel,
    ValuePath,
    longest_start,
    position,
)
from millrace.run.memory.owners import layer_finder


class FunctionLabels(ProgramLabels):
    """The labels of a program that calls a function of the user."""

    def __init__(self, source: FunctionSource):
        """Finds out what the variables of the function are for.

        Args:
            source: the variables.
        """
        self._lists = [source.changed, source.fixed]
        every = [*source.changed, *source.fixed]
        trainable = [each.path for each in every if each.trainable]
        self.layers = _layers(trainable)
        layer_of = layer_finder(self.layers)
        starts = {f"{path.replace('/', '_')}_": path for path in trainable}
        self._labels: dict[str, ValueLabel] = {}
        scopes: set[str] = {UPDATE}
        for each in every:
            scope, _, last = each.path.rpartition("/")
            of = "" if each.trainable else longest_start(last, starts)
            if of:
                # Keras names the slots of Adam, say, `adam/mlp_dense_kernel_momentum`.
                label = ValueLabel("optimizer", each.path, layer_of(of))
                scopes.add(scope.rpartition("/")[2])
            else:
                label = ValueLabel(_role(each), each.path, layer_of(each.path))
            self._labels[each.path] = label
        self.updates = frozenset(scopes)

    def argument(self, path: ValuePath) -> ValueLabel:
        """Returns the label of an argument."""
        number, index = position(path), position(path[1:])
        if 0 <= number < len(self._lists) and 0 <= index < len(self._lists[number]):
            return self._labels[self._lists[number][index].path]
        name = f"argument{jax.tree_util.keystr(path[1:])}"
        return ValueLabel("batches" if number == len(self._lists) else "other", name)

    def result(self, path: ValuePath) -> ValueLabel:
        """Returns the label of a result."""
        name, index = getattr(path[0], "name", "") if path else "", position(path[1:])
        if name == "new" and 0 <= index < len(self._lists[0]):
            return self._labels[self._lists[0][index].path]
        return super().result(path)


def _role(variable: keras.Variable) -> str:
    is_number = not variable.shape  # counters, learning rates, metrics
    return "other" if is_number and not variable.trainable else "parameters"


def _layers(paths: list[str]) -> tuple[str, ...]:
    """Returns the names of layers in the paths of weights, without that of a model around them."""
    scopes = [path.split("/")[:-1] for path in paths]
    outer = {each[0] for each in scopes if each}
    is_inside = len(outer) == 1 and all(len(each) > 1 for each in scopes)
    return tuple(dict.fromkeys(name for each in scopes for name in each[is_inside:]))
