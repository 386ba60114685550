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

from collections.abc import Iterable, Sequence

from millrace._compat.jaxpr import Graph, scope
from millrace._compat.keras_layers import layer_names
from millrace.programs.steps.accumulate import LOSS_WEIGHT
from millrace.programs.steps.state import State
from millrace.run.memory.labels import (
    ModelVariables,
    ProgramLabels,
    ValueLabel,
    ValuePath,
    position,
    update_scopes,
)
from millrace.run.memory.owners import layer_finder
from millrace.run.pipelines.programs.builder import UPDATE_PARTS, arguments_of
from millrace.run.pipelines.programs.passes import Passes
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


class StageLabels(ProgramLabels):
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
        self._lists: dict[str, list[ValueLabel]] = {}  # by name, each found when first asked for
        trains = stages.plan.mode.value == "train"
        self.kind = _DEFAULT.get(program, "" if trains else "forward")
        self.updates = update_scopes(stages.model)
        self.repeats = program.startswith("backward") and stages.plan.recompute is not None

    def argument(self, path: ValuePath) -> ValueLabel:
        """Returns the label of an argument."""
        kind = self.kind_of_argument(path)
        return self._label(kind, max(position(path[1:]), 0)) if kind else super().argument(path)

    def kind_of_argument(self, path: ValuePath) -> str:
        """Returns the list that an argument is in, such as "held"; empty for numbers."""
        number = position(path)
        return self._arguments[number] if 0 <= number < len(self._arguments) else ""

    def result(self, path: ValuePath) -> ValueLabel:
        """Returns the label of a result."""
        number, kinds = position(path), _RESULTS.get(self._program, ())
        if self._program == "zeros":
            return self._label("accumulated", max(number, 0))
        if self._program in UPDATE_PARTS:
            outputs = self._part.outputs
            return self._slot(outputs[number]) if 0 <= number < len(outputs) else ValueLabel()
        if not 0 <= number < len(kinds):
            return super().result(path)
        return self._label(kinds[number], max(position(path[1:]), 0))

    def _label(self, kind: str, number: int) -> ValueLabel:
        if kind not in self._lists:
            self._lists[kind] = self._labels(kind)
        labels = self._lists[kind]
        if number < len(labels):
            return labels[number]
        return ValueLabel(_ROLES.get(kind, "other"), f"{kind} {number}")

    def _labels(self, kind: str) -> list[ValueLabel]:
        """Returns the labels of a list; none where it is known by its numbers alone."""
        stage = self._stage
        if kind == "weights":
            return [self._slot(Slot("trainable", weight)) for weight in stage.trainable]
        if kind in ("accumulated", "gradients"):
            paths = [*self._variables.paths("trainable"), LOSS_WEIGHT.path]
            names = [f"accumulated {paths[weight]}" for weight in stage.accumulated]
            return [self._variables.label("accumulated", name) for name in names]
        if kind in ("fixed", "changing"):
            return list(map(self._slot, state_groups(stage)[kind == "changing"]))
        if kind in ("replaced", "others"):
            slots = arguments_of(self._stages.update, self._part)
            return list(map(self._slot, slots[kind == "others"]))
        if kind in ("sent", "carried"):
            return self._passed(kind, getattr(stage, kind))
        if kind in ("returned", "cotangents", "held", "residual", "residuals"):
            return self._of_passes(kind, self._stages.passes(self._index))
        return []

    def _of_passes(self, kind: str, passes: Passes) -> list[ValueLabel]:
        if kind == "returned":
            return self._passed(kind, passes.returns)
        if kind in ("residual", "residuals"):
            number = sum(source == "residual" for source, _ in passes.held)
            layers = self._layers_of(passes.forward)
            return _numbered(kind, layers[len(layers) - number :])
        is_part = self._program == "backward_weight"  # which takes some of the values only
        if kind == "held":
            held = [passes.held[k] for k in passes.weight_held] if is_part else passes.held
            return [self._label(source, index) for source, index in held]
        pairs = passes.cotangents
        pairs = [pairs[k] for k in passes.weight_cotangents] if is_part else pairs
        return self._passed(kind, [value for value, _ in pairs])

    def _passed(self, kind: str, values: Iterable[int]) -> list[ValueLabel]:
        """Returns the labels of values that pass between stages, with the layers that make them."""
        split, layers = self._stages.split, list[str]()
        for value in values:
            producer = split.stages[split.values[value].producer]
            layers.append(self._layers_of(producer.graph)[producer.sent.index(value)])
        return _numbered(kind, layers)

    def _layers_of(self, graph: Graph) -> Sequence[str]:
        """Returns the layers of a graph's outputs; empty for those that no layer makes."""
        made = {var: scope(each) for each in graph.equations for var in each.outvars}
        layer_of = layer_finder(layer_names(self._stages.model))
        return [layer_of(made[var]) if var in made else "" for var in graph.outvars]

    @property
    def _part(self) -> UpdatePart:
        return self._stages.update.parts[self._program, self._index]

    def _slot(self, slot: Slot) -> ValueLabel:
        if slot.role == "gradient":
            return ValueLabel("accumulators", f"accumulated gradient {slot.index}")
        if slot.role not in State._fields:
            return ValueLabel(name=f"{slot.role} {slot.index}")
        return self._variables.label(slot.role, self._variables.paths(slot.role)[slot.index])


def _numbered(kind: str, layers: Iterable[str]) -> list[ValueLabel]:
    return [ValueLabel(_ROLES[kind], f"{kind} {k}", layer) for k, layer in enumerate(layers)]
