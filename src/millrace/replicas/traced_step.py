"""One replica's step as a traced function, with rules for the values that it changes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import keras

from millrace._compat.jaxpr import Graph, as_function, primitive_counts, trace, variables
from millrace.plan import ROLES, Mode, Plan
from millrace.pytrees import ArrayTree
from millrace.replicas.state_rules import Rule, find_rule
from millrace.steps.program import batch_specs
from millrace.steps.state import State
from millrace.steps.step import make_gradient_step, make_step
from millrace.steps.tapped_step import make_tapped_step
from millrace.taps.taps import Tapped, collection_open


class StepOutput(NamedTuple):
    """The values that one replica's step returns."""

    gradients: Sequence[jax.Array]  # none outside of training
    non_trainable: Sequence[jax.Array]
    metrics: Sequence[jax.Array]
    result: ArrayTree  # logs, or outputs when predicting
    tapped: Tapped


class TracedStep:
    """A step of a model: gradients when training, outputs or logs, and the state that it changes.

    Its arguments include only those optimizer values that it reads, such as the factor of loss
    scaling: with sharded optimizer state, all others would have to be gathered.
    """

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces the step.

        Args:
            model: a compiled Keras model.
            plan: has the mode and the specs of a batch.
            state: specs of the values of one replica.
        """
        trains = plan.mode is Mode.TRAIN
        make = make_tapped_step(model, plan) if plan.tapped else _untapped(model, plan)
        roles = ROLES[plan.mode]

        def step(state: State, batch: ArrayTree) -> StepOutput:
            (*gradients, new, result), tapped = make(state, batch)
            new_state = dict(zip(roles, map(list, new), strict=True))
            changed = new_state["non_trainable"], new_state.get("metric", [])
            return StepOutput(list(gradients[0]) if trains else [], *changed, result, tapped)

        with collection_open(keeps=False) as tapped:
            graph, specs = trace(step, state, batch_specs(plan, ()))
        # Whether the model taps values itself, which are carried out only if the plan says so.
        self.taps_values = bool(tapped)
        self.result, self.tapped = specs.result, specs.tapped
        self._tree = jax.tree.structure(specs)
        inputs = dict(zip(roles, map(len, state), strict=True))
        names = [(role, index) for role, size in inputs.items() for index in range(size)]
        slots = dict(zip(names, graph.invars, strict=False))
        read = {v for equation in graph.equations for v in variables(equation.invars)}
        read.update(variables(graph.outvars))
        self.optimizer = tuple(
            i for (role, i), var in slots.items() if role == "optimizer" and var in read
        )
        left_out = {
            var
            for (role, i), var in slots.items()
            if role == "optimizer" and i not in self.optimizer
        }
        invars = tuple(var for var in graph.invars if var not in left_out)
        self._run = as_function(Graph(invars, graph.outvars, graph.equations, graph.constants))
        first = len(specs.gradients)
        self.rules: list[Rule] = [
            find_rule(graph, slots["non_trainable", i], graph.outvars[first + i])
            for i in range(inputs["non_trainable"])
        ]
        self.primitives = primitive_counts(graph.equations)

    def run(
        self,
        trainable: Sequence[jax.Array],
        optimizer: Sequence[jax.Array],
        non_trainable: Sequence[jax.Array],
        metrics: Sequence[jax.Array],
        batch: ArrayTree,
    ) -> StepOutput:
        """Runs one step.

        Args:
            trainable: weights.
            optimizer: those values of the optimizer whose indices are in `self.optimizer`.
            non_trainable: other values of the model.
            metrics: values of its metrics.
            batch: of this replica.
        """
        arguments = (*trainable, *non_trainable, *optimizer, *metrics, *jax.tree.leaves(batch))
        return jax.tree.unflatten(self._tree, self._run(*arguments))


def _untapped(model: keras.Model, plan: Plan) -> Callable[..., tuple[Any, Tapped]]:
    trains = plan.mode is Mode.TRAIN
    make: Any = make_gradient_step(model, plan) if trains else make_step(model, plan.mode)
    return lambda state, batch: (make(state, batch), Tapped())
