"""One replica's step as a traced function, with what it needs and what it does to the state."""

from typing import Any

import jax
import keras

from millrace._compat.jaxpr import Graph, as_function, primitive_counts, trace, variables
from millrace.plan import ROLES, Mode, Plan
from millrace.replicas.state_rules import Rule, find_rule
from millrace.steps.program import batch_specs
from millrace.steps.state import State
from millrace.steps.step import make_gradient_step, make_step
from millrace.steps.tapped_step import make_tapped_step
from millrace.taps.taps import Tapped, collection_open


class TracedStep:
    """A step of a model: gradients when training, outputs or logs, and the state that it changes.

    It is given the values of the optimizer that it reads, which are few (the factor of loss
    scaling, say): all of them would be gathered where replicas share them out.
    """

    def __init__(self, model: keras.Model, plan: Plan, state: State):
        """Traces it.

        Args:
            model: a compiled Keras model.
            plan: whose mode and batch are traced.
            state: specs of the values of one replica.
        """
        trains = plan.mode is Mode.TRAIN
        make = make_tapped_step(model, plan) if plan.tapped else _untapped(model, plan)
        roles = ROLES[plan.mode]

        def step(state: State, batch: Any) -> Any:
            (*gradients, new, result), tapped = make(state, batch)
            new_state = dict(zip(roles, map(list, new), strict=True))
            changed = new_state["non_trainable"], new_state.get("metric", [])
            return list(gradients[0]) if trains else [], *changed, result, tapped

        with collection_open(keeps=False) as found:
            graph, specs = trace(step, state, batch_specs(plan, ()))
        # Whether the model taps values of its own, which only a plan that is told so carries out.
        self.taps_found = bool(found)
        *_, self.result, self.tapped = specs
        self._tree = jax.tree.structure(specs)
        inputs = dict(zip(roles, map(len, state), strict=True))
        places = [(role, index) for role, size in inputs.items() for index in range(size)]
        slots = dict(zip(places, graph.invars, strict=False))
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
        first = len(specs[0])
        self.rules: list[Rule] = [
            find_rule(graph, slots["non_trainable", i], graph.outvars[first + i])
            for i in range(inputs["non_trainable"])
        ]
        self.primitives = primitive_counts(graph.equations)

    def run(
        self, trainable: Any, optimizer: Any, non_trainable: Any, metrics: Any, batch: Any
    ) -> tuple[Any, Any, Any, Any, Tapped]:
        """Returns gradients, new non-trainable values, new metric values, the result, and taps.

        Args:
            trainable: weights.
            optimizer: values of the optimizer, those in `self.optimizer`.
            non_trainable: other values of the model.
            metrics: values of its metrics.
            batch: of this replica.
        """
        arguments = (*trainable, *non_trainable, *optimizer, *metrics, *jax.tree.leaves(batch))
        return jax.tree.unflatten(self._tree, self._run(*arguments))


def _untapped(model: keras.Model, plan: Plan) -> Any:
    trains = plan.mode is Mode.TRAIN
    make: Any = make_gradient_step(model, plan) if trains else make_step(model, plan.mode)
    return lambda state, batch: (make(state, batch), Tapped())
