"""Labels for the arguments and results of a program: roles, and names in the model.

    program       arguments                              results
    run           state, batches, start, count           state, result, taps
    accumulate    state, accumulated, batches, ...       state, accumulated, result, taps
    zeros         state                                  accumulated
    apply         state, accumulated, ...                state, taps

The programs of stages have theirs in stage_labels.py, those of functions in function_labels.py.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import keras

from millrace._compat.jax_executables import kept_arguments
from millrace._compat.keras_layers import layer_names
from millrace._compat.keras_loops import variables_of
from millrace._compat.keras_optimizers import wrapped_chain
from millrace.programs.plan import Plan
from millrace.programs.steps.scopes import UPDATE
from millrace.run.memory.owners import layer_finder

ValuePath = tuple[Any, ...]  # of a leaf, in the tree of a program's arguments or results

ARGUMENTS = {  # of each program, without numbers
    "run": ("state", "batches"),
    "accumulate": ("state", "accumulated", "batches"),
    "zeros": ("state",),
    "apply": ("state", "accumulated"),
}
_RESULTS = {
    "run": ("state", "result"),
    "accumulate": ("state", "accumulated", "result"),
    "zeros": ("accumulated",),
    "apply": ("state",),
}
ROLE_OF_VARIABLES = {  # and of kinds of arguments: one of `program_memory.ROLES`
    "trainable": "parameters",
    "non_trainable": "parameters",
    "optimizer": "optimizer",
    "accumulated": "accumulators",
    "batches": "batches",
}
_DEFAULT = {"zeros": "accumulation", "apply": "update"}


class ValueLabel(NamedTuple):
    """What one array is."""

    role: str = "other"  # one of `program_memory.ROLES`
    name: str = ""  # the path of a variable: "dense/kernel"; "batches[0]"
    layer: str = ""


def position(path: ValuePath) -> int:
    """Returns the index that a path begins with; -1 if it begins with none."""
    return getattr(path[0], "idx", -1) if path else -1


class ProgramLabels:
    """The labels of the arrays of one program: here, of a program of which nothing is known."""

    kind = ""  # of its operations whose names do not tell: as in `ProgramSegment`
    updates: frozenset[str] = frozenset()  # name scopes of the update of the weights
    repeats = False  # whether its forward operations repeat those of another program

    def argument(self, path: ValuePath) -> ValueLabel:
        """Returns the label of an argument."""
        return ValueLabel(name=f"argument{jax.tree_util.keystr(path)}")

    def result(self, path: ValuePath) -> ValueLabel:
        """Returns the label of a result."""
        return ValueLabel(name=f"result{jax.tree_util.keystr(path)}")


def labels_of_arguments(
    compiled: jax.stages.Compiled, label_of: Callable[[ValuePath], ValueLabel] | None
) -> Callable[[int], ValueLabel]:
    """Returns a function that labels the arguments of an executable by their number in it.

    Args:
        compiled: the executable.
        label_of: returns the label of an argument by its path.
    """
    paths = kept_arguments(compiled)

    def label(parameter: int) -> ValueLabel:
        path = paths[parameter] if parameter < len(paths) else ()
        return label_of(path) if label_of and path else ValueLabel(name=f"argument {parameter}")

    return label


class ModelVariables:
    """The names of a model's variables, and their layers, each found when first asked for."""

    def __init__(self, model: keras.Model):
        self._model = model
        self._paths: dict[str, list[str]] = {}  # of the variables of a role

    def paths(self, role: str) -> list[str]:
        """Returns the names of the variables of a role, in their order."""
        if role not in self._paths:  # Keras walks through all layers for these
            self._paths[role] = [each.path for each in variables_of(self._model, role)]
        return self._paths[role]

    def label(self, kind: str, name: str) -> ValueLabel:
        """Returns the label of a value: a variable, what is accumulated for it, or another one."""
        role = ROLE_OF_VARIABLES.get(kind, "other")
        return ValueLabel(role, name, self._layers.get(name, ""))

    @cached_property
    def _layers(self) -> Mapping[str, str]:
        return variable_layers(self._model)


class LoopLabels(ProgramLabels):
    """The labels of a program of a model in one piece, with or without replicas."""

    PROGRAMS = tuple(ARGUMENTS)

    def __init__(self, model: keras.Model, plan: Plan, program: str):
        """Finds the variables.

        Args:
            model: of the program.
            plan: of the program.
            program: "run", "accumulate", "zeros" or "apply".
        """
        self._variables = ModelVariables(model)
        self._arguments, self._results = ARGUMENTS[program], _RESULTS[program]
        self.kind = _DEFAULT.get(program, "" if plan.mode.value == "train" else "forward")
        self.updates = update_scopes(model)

    def argument(self, path: ValuePath) -> ValueLabel:
        """Returns the label of an argument."""
        number = position(path)
        if not 0 <= number < len(self._arguments):
            return ValueLabel(name="a number")
        return self._label(self._arguments[number], path[1:])

    def result(self, path: ValuePath) -> ValueLabel:
        """Returns the label of a result."""
        if len(self._results) == 1 and self._results[0] != "state":  # it is not in a tuple
            return self._label(self._results[0], path)
        number = position(path)
        if not 0 <= number < len(self._results):
            return ValueLabel(name="taps")
        return self._label(self._results[number], path[1:])

    def _label(self, kind: str, rest: ValuePath) -> ValueLabel:
        if kind == "state":
            if not rest:
                return ValueLabel(name=kind)
            role = rest[0].name
            paths = self._variables.paths(role)
            name = paths[rest[1].idx if len(rest) > 1 else 0] if paths else kind
        elif kind == "accumulated":
            role, index = kind, max(position(rest), 0)
            paths = self._variables.paths("trainable")
            # With replicas, sums of other values follow those of gradients.
            name = f"accumulated {paths[index] if index < len(paths) else index}"
        else:
            role, name = kind, f"{kind}{jax.tree_util.keystr(rest)}"
        return self._variables.label(role, name)


def update_scopes(model: keras.Model | None) -> frozenset[str]:
    """Returns the name scopes of a model's optimizer, and of the one that it wraps."""
    optimizers = wrapped_chain(getattr(model, "optimizer", None))
    return frozenset({UPDATE, *(each.name for each in optimizers)})


def variable_layers(model: keras.Model) -> dict[str, str]:
    """Returns the layers of weights, accumulators and optimizer state, by name."""
    layer_of = layer_finder(layer_names(model))
    layers = {each.path: layer_of(each.path) for each in model.variables}
    names = {path: layer for path, layer in layers.items() if layer}
    slots = variables_of(model, "optimizer")
    # Keras names the slots of Adam, say, `adam/mlp_dense_kernel_momentum`.
    starts = {f"{each.path.replace('/', '_')}_": each.path for each in model.trainable_variables}
    for path in starts.values():
        names[f"accumulated {path}"] = names.get(path, "")
    for variable in slots:
        last = variable.path.rpartition("/")[2]
        if path := longest_start(last, starts):
            names[variable.path] = names.get(path, "")
    return names


def longest_start(name: str, starts: Mapping[str, str]) -> str:
    """Returns the value of the longest key that a name starts with, empty if there is none."""
    end = name.rfind("_")
    while end > 0:
        if (path := starts.get(name[: end + 1])) is not None:
            return path
        end = name.rfind("_", 0, end)
    return ""
