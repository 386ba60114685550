"""Labels for the arguments and results of a stage's programs.

    forward          weights, fixed, changing, batch, carried     -> sent, changing, results, held
    backward         weights, held, cotangents, accumulated, ...  -> returned, accumulated
    backward_input   weights, held, cotangents                    -> returned, kept
    backward_weight  weights, held, cotangents, kept, accumulated -> nothing, accumulated
    zeros                                                         -> accumulated
    reduce_replicas  accumulated, changing                        -> gradients, changing
    partial, shared, final    values that it replaces, others     -> values
    logs             metrics                                      -> logs

The lists are those of run/pipelines/programs/builder.py.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import jax

from millrace._compat.jaxpr import Graph, scope
from millrace._compat.keras_layers import layer_names
from millrace.run.memory.labels import (
    ModelVariables,
    ValueLabel,
    ValuePath,
    position,
    update_scopes,
)
from millrace.run.memory.owners import layer_finder
from millrace.run.pipelines.programs.builder import UPDATE_PARTS, arguments_of
from millrace.run.pipelines.programs.split import Slot, Stage
from millrace.run.pipelines.programs.split_update import UpdatePart
from millrace.run.pipelines.programs.stages import Stages, state_groups

_ARGUMENTS = {
    "forward": ("weights", "fixed", "changing", "batch", "carried"),
    "backward": ("weights", "held", "cotangents", "accumulated"),
    "backward_input": ("weights", "held", "cotangents"),
    "backward_weight": ("weights", "held", "cotangents", "kept", "accumulated"),
    "reduce_replicas": ("accumulated", "changing"),
    "partial": ("replaced", "others"),
    "shared": ("replaced", "others"),
    "final": ("replaced", "others"),
    "logs": ("metrics",),
}
_RESULTS = {
    "forward": ("sent", "changing", "results", "residuals"),
    "backward": ("returned", "accumulated"),
    "backward_input": ("returned", "kept"),
    "backward_weight": ("returned", "accumulated"),
    "reduce_replicas": ("gradients", "changing"),
}
_ROLES = {
    "weights": "parameters",
    "fixed": "parameters",
    "changing": "parameters",
    "batch": "batches",
    "carried": "activations",
    "sent": "activations",
    "residual": "activations",
    "residuals": "activations",
    "cotangents": "gradients",
    "returned": "gradients",
    "kept": "gradients",
    "gradients": "accumulators",
    "accumulated": "accumulators",
}
_DEFAULT = {
    "zeros": "accumulation",
    "reduce_replicas": "accumulation",
    "partial": "update",
    "shared": "update",
    "final": "update",
    "forward": "forward",
}
# Values of one micro-batch, which several programs hold between them.
OF_MICRO_BATCH = frozenset({"batch", "carried", "held", "cotangents", "kept"})


class StageLabels:
    """The labels of one program of a stage."""

    def __init__(self, stages: Stages, program: str, index: int):
        """Finds the lists of values.

        Args:
            stages: of the pipeline.
            program: "forward", "backward", ...
            index: of the stage.
        """
        self._stages, self._program, self._index = stages, program, index
        self._stage: Stage = stages.split.stages[index]
        self._arguments = _ARGUMENTS.get(program, ())
        self._variables = ModelVariables(stages.model)
        trains = stages.plan.mode.value == "train"
        self.kind = _DEFAULT.get(program, "" if trains else "forward")
        self.updates = update_scopes(stages.model)
        self.repeats = program.startswith("backward") and stages.plan.recompute is not None

    def argument(self, path: ValuePath) -> ValueLabel:
        """Returns the label of an argument."""
        kind = self.kind_of_argument(path)
        if not kind:
            return ValueLabel(name=f"argument{jax.tree_util.keystr(path)}")
        return self._label(kind, max(position(path[1:]), 0))

    def kind_of_argument(self, path: ValuePath) -> str:
        """Returns the list that an argument is in, such as "held"; empty for numbers."""
        number = position(path)
        return self._arguments[number] if 0 <= number < len(self._arguments) else ""

    def result(self, path: ValuePath) -> ValueLabel:
        """Returns the label of a result."""
        number, rest = position(path), path[1:]
        if self._program == "zeros":
            return self._label("accumulated", max(number, 0))
        if (part := self._part) is not None:
            outputs = part.outputs
            return self._slot(outputs[number]) if 0 <= number < len(outputs) else ValueLabel()
        kinds = _RESULTS.get(self._program, ())
        if not 0 <= number < len(kinds):
            return ValueLabel(name=f"result{jax.tree_util.keystr(path)}")
        return self._label(kinds[number], max(position(rest), 0))

    def _label(self, kind: str, number: int) -> ValueLabel:
        if kind in ("replaced", "others"):
            slots = self._slots[kind]
            return self._slot(slots[number]) if number < len(slots) else ValueLabel(name=kind)
        if kind in ("fixed", "changing"):
            slots = state_groups(self._stage)[kind == "changing"]
            return self._slot(slots[number]) if number < len(slots) else ValueLabel(name=kind)
        if kind in ("weights", "accumulated", "gradients"):
            weights = self._stage.trainable
            if number >= len(weights):
                return ValueLabel(_ROLES[kind], f"{kind} {number}")
            path = self._variables.paths("trainable")[weights[number]]
            if kind == "weights":
                return self._variables.label("trainable", path)
            return self._variables.label("accumulated", f"accumulated {path}")
        if kind == "held":
            return self._held(number)
        layer = self._layer_of_value(kind, number)
        return ValueLabel(_ROLES.get(kind, "other"), f"{kind} {number}", layer)

    def _held(self, number: int) -> ValueLabel:
        passes = self._stages.passes(self._index)
        if self._program == "backward_weight":
            number = passes.weight_held[number]
        source, index = passes.held[number]
        layer = self._layer_of_value(source, index)
        return ValueLabel(_ROLES[source], f"{source} {index}", layer)

    def _layer_of_value(self, kind: str, number: int) -> str:
        if kind in ("residual", "residuals"):
            return _item(self._residual_layers, number)
        if kind in ("sent", "carried"):
            return self._sent_layer(
                (self._stage.sent, self._stage.carried)[kind == "carried"][number]
            )
        passes = self._stages.passes(self._index) if kind in ("cotangents", "returned") else None
        if passes is None:
            return ""
        if kind == "returned":
            return self._sent_layer(passes.returns[number])
        if self._program == "backward_weight":
            number = passes.weight_cotangents[number]
        return self._sent_layer(passes.cotangents[number][0])

    def _sent_layer(self, value: int) -> str:
        """Returns the layer that makes a value which passes between stages."""
        producer = self._stages.split.stages[self._stages.split.values[value].producer]
        return _item(self._layers_of(producer.graph), producer.sent.index(value))

    def _layers_of(self, graph: Graph) -> Sequence[str]:
        """Returns the layers of a graph's outputs; empty for those that no layer makes."""
        made = {var: scope(each) for each in graph.equations for var in each.outvars}
        layer_of = layer_finder(layer_names(self._stages.model))
        return [layer_of(made[var]) if var in made else "" for var in graph.outvars]

    @cached_property
    def _residual_layers(self) -> Sequence[str]:
        passes = self._stages.passes(self._index)
        number = sum(source == "residual" for source, _ in passes.held)
        layers = self._layers_of(passes.forward)
        return layers[len(layers) - number :]

    @cached_property
    def _part(self) -> UpdatePart | None:
        if self._program not in UPDATE_PARTS:
            return None
        return self._stages.update.parts.get((self._program, self._index))

    @cached_property
    def _slots(self) -> Mapping[str, Sequence[Slot]]:
        if self._part is None:
            return {"replaced": (), "others": ()}
        replaced, others = arguments_of(self._stages.update, self._part)
        return {"replaced": replaced, "others": others}

    def _slot(self, slot: Slot) -> ValueLabel:
        if slot.role == "gradient":
            return ValueLabel("accumulators", f"accumulated gradient {slot.index}")
        if slot.role not in ("trainable", "non_trainable", "optimizer", "metric"):
            return ValueLabel(name=f"{slot.role} {slot.index}")
        return self._variables.label(slot.role, self._variables.paths(slot.role)[slot.index])


def _item(layers: Sequence[str], index: int) -> str:
    return layers[index] if 0 <= index < len(layers) else ""
