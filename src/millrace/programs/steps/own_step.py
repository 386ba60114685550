"""A `train_step` that the user wrote, taken apart where it takes its gradients.

    as written   state, batch -> loss -> gradients -> clip, optimizer.apply, ... -> new state, logs

    forward      state, batch -> loss, values that a batch changes, logs      differentiated by us
    update       state, gradients -> weights, optimizer's values, and what follows from these

So its micro-batches accumulate, its replicas add up and its backward recomputes as those of Keras's
own step: gradients are those of the user's loss, and what the step does with them it does once in
an update. Logs and metrics that follow from gradients are those of a micro-batch.

A step that takes gradients in turn, such as a judge's and then an artist's at the judge's new
weights, has several turns: all micro-batches give the gradients of the first one, and then, with
these, those of the next. Two gradients of one weight, to be combined, have a turn each.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras

from millrace._compat.jax_gradients import (
    GradientPoint,
    gradient_points,
    gradients_apart,
    received_apart,
)
from millrace._compat.jaxpr import Graph, Var, as_function, is_literal, trace, used, variables
from millrace._compat.keras_steps import compute_gradient_step
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.errors import ModelError
from millrace.programs.plan import Mode, Plan
from millrace.programs.recomputation.step import recomputes
from millrace.programs.steps.loss_weights import Losses
from millrace.programs.steps.program import batch_specs
from millrace.programs.steps.state import State, as_lists, from_step, variable_text
from millrace.programs.taps.taps import collecting, tap

Gradients: TypeAlias = list[jax.Array]  # in the order of the trainable variables
Slot: TypeAlias = tuple[str, int]  # role and index of an input or a result
Values: TypeAlias = dict[Any, Any]  # of variables
Differentiate: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def has_own_step(model: keras.Model, mode: Mode) -> bool:
    """Whether a model overrides `train_step`, `test_step` or `predict_step`."""
    step = f"{mode.value}_step"
    return getattr(type(model), step) is not getattr(keras.Model, step)


def own_step(model: keras.Model, plan: Plan, state: State) -> "OwnStep | None":
    """Returns the parts of the step that the user wrote; None where it is Keras's own.

    Raises:
        ModelError: if the plan recomputes, and the step computes its gradients by itself.
    """
    if not has_own_step(model, Mode.TRAIN):
        return None
    own = OwnStep(model, state, batch_specs(plan.batch))
    if recomputes(plan) and not own.differentiates:
        raise ModelError(
            f"The train_step() of {type(model).__name__} {model.name!r} computes its gradients by "
            "itself, within jax.vmap or another function than jax.value_and_grad, so none of its "
            "forward can run again in backward. Differentiate a loss of the whole batch, or set "
            "mode='none' in set_recomputation_options()."
        )
    return own


def check_whole(model: keras.Model, turns: int, plan: Plan) -> None:
    """Refuses a part of an update where its micro-batches run several times.

    Raises:
        ModelError: saying what to set.
    """
    if turns == 1:
        return
    steps, micro_batch = plan.update_steps, plan.accumulation.micro_batch
    cause = (
        f"{type(model).__name__} {model.name!r} overrides train_step(), which takes gradients "
        f"{turns} times in turn, so that each update runs its micro-batches {turns} times"
    )
    if micro_batch != "whole":
        raise ModelError(
            f"{cause}, and micro_batch={micro_batch!r} divides a batch that runs once. Set "
            "micro_batch='whole', give fit a smaller batch_size, and set "
            "gradient_accumulation_steps_per_replica in set_gradient_accumulation_options()."
        )
    raise ModelError(
        f"{cause}. That needs all {steps} at once, in batches of one size, and this epoch ends "
        f"within an update. Give fit a multiple of {steps} full batches: set steps_per_epoch, or "
        "leave out the rows of the last ones."
    )


def compute_gradients(
    model: keras.Model,
    state: State,
    batch: ArrayTree,
    differentiate: Differentiate | None = None,
    earlier: Sequence[Gradients] = (),
    losses: Losses | None = None,
) -> tuple[Any, State, ArrayTree]:
    """Runs one micro-batch forward and backward, by Keras's step or by the user's.

    Args:
        model: a compiled Keras model.
        state: values.
        batch: x, y and sample weights, as the data adapter yields them.
        differentiate: as in `OwnStep.gradient_step`; None is JAX's own.
        earlier: likewise.
        losses: notes the losses of the step; None notes nothing.

    Returns:
        Gradients in the order of the trainable variables (of the scaled loss, where the optimizer
        scales it), the state without the update, logs.
    """
    if has_own_step(model, Mode.TRAIN):
        differentiate = differentiate or functools.partial(jax.value_and_grad, has_aux=True)
        own = OwnStep(model, state, batch, losses)
        return own.gradient_step(state, batch, differentiate, earlier)
    with nullcontext() if losses is None else losses.noticed():
        gradients, non_trainable, metrics, logs = compute_gradient_step(
            model, as_lists(state), batch, differentiate
        )
    return gradients, state.replace(non_trainable=non_trainable, metric=metrics), logs


class OwnStep:
    """The parts of a traced step.

    Attributes:
        turns: how many times the micro-batches of an update run, for gradients taken in turn.
        differentiates: whether all gradients are those of losses, and none computed by the step.
        shows_gradients: whether logs, metrics or taps follow from the gradients of a micro-batch.
    """

    def __init__(
        self,
        model: keras.Model,
        state: State,
        batch: "ArrayTree | SpecTree",
        losses: Losses | None = None,
    ):
        """Traces the step.

        Args:
            model: a compiled Keras model with a `train_step` of its own.
            state: specs or values, of which the specs count.
            batch: likewise.
            losses: notes the losses of the step.

        Raises:
            ModelError: if the step cannot be taken apart.
        """
        self._model = model
        state = state._replace(metric_parts=())  # of replicas; a step has its own alone

        def step(state: State, batch: ArrayTree) -> tuple[State, ArrayTree]:
            with nullcontext() if losses is None else losses.noticed():
                logs, new = model.train_step(as_lists(state), batch)  # type: ignore[attr-defined]
            return from_step(new, state, model, Mode.TRAIN), jax.tree.map(jnp.asarray, logs)

        function, specs = collecting(step), jax.tree.map(_spec, (state, batch))
        self._trace(gradients_apart(function), specs)
        # Gradients with regard to other values, such as inputs, are part of a forward.
        computed = {p.number for p in self._points if not self._is_of_weights(p)}
        if computed:
            self._trace(gradients_apart(function, computed), specs)
        if not self._points:
            variables_ = model.trainable_variables
            self._trace(received_apart(function, _optimizers(model), variables_), specs)
        if not self._points:
            raise self._refusal(
                "takes no gradients by jax.grad or jax.value_and_grad, and hands none to an "
                "optimizer, so millrace cannot tell them from the rest"
            )
        self._turns = self._in_turns()
        if any(-1 in turn.indices for turn in self._turns):
            raise self._refusal(
                "hands an optimizer gradients of variables that are not trainable ones of the model"
            )
        self.turns = len(self._turns)
        self.differentiates = all(turn.losses for turn in self._turns)
        (new, self._logs), self._tapped = self._specs
        slots = _slots(new, log=self._logs, tap=self._tapped)
        outputs = dict(zip(slots, self._graph.outvars, strict=True))
        follows = self._following(self._turns[-1].gradients)
        gradients = {var for turn in self._turns for var in turn.gradients}
        inputs = (var for var, slot in self._slots.items() if slot[0] == "batch")
        of_batch = self._following(inputs, gradients)  # and not through gradients alone
        # What an optimizer taps is of the update, too.
        self._updated = {
            slot: atom
            for slot, atom in outputs.items()
            if slot[0] in ("trainable", "optimizer")
            or (slot[0] == "non_trainable" and _is_among(atom, follows))
            or (slot[0] == "tap" and _is_among(atom, follows) and not _is_among(atom, of_batch))
        }
        self._others = {slot: a for slot, a in outputs.items() if slot not in self._updated}
        self.shows_gradients = any(_is_among(atom, follows) for atom in self._others.values())
        both = next((s for s, atom in self._updated.items() if _is_among(atom, of_batch)), None)
        if both is not None:
            name = variable_text(model, *both)
            raise self._refusal(f"changes {name} by the batch and by its gradients")

    def gradient_step(
        self,
        state: State,
        batch: ArrayTree,
        differentiate: Differentiate,
        earlier: Sequence[Gradients] = (),
    ) -> tuple[Any, State, ArrayTree]:
        """Runs one micro-batch forward and backward.

        Args:
            state: values.
            batch: values.
            differentiate: makes a function of `(loss, auxiliary)` one that returns both, and the
                gradients with regard to its first argument.
            earlier: gradients of the update, of each turn before this one.

        Returns:
            Gradients, or what `differentiate` returns for them; the state without the update; logs.
        """
        turn = self._turns[len(earlier)]
        follows = self._following(turn.gradients)
        values = self._given(state, batch, earlier)
        others = self._others
        if turn is not self._turns[-1]:  # which has the logs, and values that follow from all
            others = {
                slot: atom
                for slot, atom in others.items()
                if slot[0] == "non_trainable" and not _is_among(atom, follows)
            }
        late = [atom for atom in others.values() if _is_among(atom, follows)]
        early = [atom for atom in others.values() if not _is_among(atom, follows)]
        wanted = list(dict.fromkeys(variables(early)))
        wanted += _entering(self._needed(late, turn.gradients), follows)
        weights = list(state.trainable)
        for var, index in turn.inner.items():
            weights[index] = values[var]

        def forward(weights: Sequence[Any], given: Sequence[Any]) -> tuple[Any, list[Any]]:
            within = dict(zip(values, given, strict=True))
            within.update((var, weights[index]) for var, index in turn.inner.items())
            results = self._run([*turn.losses, *wanted], within)  # at once: one forward
            losses = results[: len(turn.losses)]
            return sum(losses[1:], losses[0]), results[len(losses) :]

        if turn.losses:
            (_, found), gradients = differentiate(forward)(weights, list(values.values()))
        else:
            gradients = [jnp.zeros_like(weight) for weight in weights]
            received = self._run(turn.received, values)
            for index, value in zip(turn.gradients.values(), received, strict=True):
                gradients[index] = value
            found = self._run(wanted, values)
        values.update(zip(wanted, found, strict=True))
        if late:
            values.update(turn.as_values(gradients))
        results = dict(zip(others, self._run(others.values(), values), strict=True))
        return gradients, *self._results(state, results)

    def forward(self, state: State, batch: ArrayTree) -> tuple[jax.Array, State, ArrayTree]:
        """Runs one micro-batch forward, for stages that are differentiated one by one.

        Returns:
            The loss, the state without the update, logs.

        Raises:
            ModelError: naming the line, if the step is more than one function's gradients.
        """
        turn = self._turns[0]
        updated = [s for s in self._updated if s[0] == "non_trainable"]
        only = self.turns == 1 and len(turn.losses) == 1
        if not only or self.shows_gradients or updated or self._reads_others():
            raise self._refusal(f"cannot be cut into stages: {self._why_not_cut(updated)}")
        # Where the step uses weights besides, it does not differentiate with regard to them.
        stopped = state.replace(trainable=map(jax.lax.stop_gradient, state.trainable))
        values = dict(zip(self._graph.invars, jax.tree.leaves((stopped, batch)), strict=True))
        values.update(zip(turn.entered, self._run(turn.entered.values(), values), strict=True))
        values.update((var, state.trainable[index]) for var, index in turn.inner.items())
        loss, *found = self._run([*turn.losses, *self._others.values()], values)
        return loss, *self._results(state, dict(zip(self._others, found, strict=True)))

    def update(
        self, state: State, gradients: Gradients, earlier: Sequence[Gradients] = ()
    ) -> State:
        """Returns the state after an update.

        Args:
            state: after the micro-batches.
            gradients: of the last turn.
            earlier: of each turn before.
        """
        given = {(role, k): value for role, part in state.items() for k, value in enumerate(part)}
        values = {var: given[slot] for var, slot in self._slots.items() if slot in given}
        for turn, each in zip(self._turns, [*earlier, gradients], strict=True):
            values.update(turn.as_values(each))
        found = self._run(self._updated.values(), values)
        results = dict(zip(self._updated, found, strict=True))
        self._tap(results)
        return _with(state, results)

    def _results(self, state: State, results: Mapping[Slot, Any]) -> tuple[State, ArrayTree]:
        """Returns the state and the logs in results, and taps what is tapped."""
        state = _with(state, results)
        if not all(slot in results for slot in self._others):
            return state, None  # of a turn before the last
        self._tap(results)
        logs = [results[slot] for slot in _named("log", self._logs)]
        return state, jax.tree.unflatten(jax.tree.structure(self._logs), logs)

    def _tap(self, results: Mapping[Slot, Any]) -> None:
        """Taps what of the step's taps is in results."""
        slots = iter(_named("tap", self._tapped))
        for key, specs in self._tapped.items():
            own = [next(slots) for _ in jax.tree.leaves(specs)]
            if own and own[0] in results:
                values = [results[slot] for slot in own]
                tap(key, jax.tree.unflatten(jax.tree.structure(specs), values))

    def _given(self, state: State, batch: ArrayTree, earlier: Sequence[Gradients]) -> Values:
        """Returns values of the inputs, and where functions are differentiated up to this turn."""
        values = dict(zip(self._graph.invars, jax.tree.leaves((state, batch)), strict=True))
        for number, turn in enumerate(self._turns[: len(earlier) + 1]):
            values.update(zip(turn.entered, self._run(turn.entered.values(), values), strict=True))
            if number < len(earlier):
                values.update(turn.as_values(earlier[number]))
        return values

    def _run(self, atoms: Collection[Any], values: Values) -> list[Any]:
        """Returns the values of variables or literals that follow from the given ones."""
        graph = self._needed(atoms, values)
        return as_function(graph)(*(values[var] for var in graph.invars))

    def _needed(self, atoms: Collection[Any], given: Iterable[Var]) -> Graph:
        inputs = [var for var in given if var not in self._slots]
        return used(self._graph, list(atoms), inputs)

    def _following(self, sources: Iterable[Var], stops: Collection[Var] = ()) -> set[Var]:
        """Returns the variables that follow from some, and these; not those that stop this."""
        found = set(sources)
        for equation in self._graph.equations:
            if any(var in found for var in variables(equation.invars)):
                found.update(var for var in equation.outvars if var not in stops)
        return found

    def _trace(self, function: Callable[..., Any], specs: Any) -> None:
        """Traces the step, with its gradients apart as `function` has them."""
        self._graph, self._specs = trace(function, *specs)
        state, batch = specs
        self._slots = dict(zip(self._graph.invars, _slots(state, batch=batch), strict=True))
        self._points = gradient_points(self._graph)
        graph = used(self._graph, self._graph.outvars)
        self._read = {v for e in graph.equations for v in variables(e.invars)}
        self._read.update(variables(graph.outvars))

    def _in_turns(self) -> list["_Turn"]:
        """Returns the gradients that the step takes at the same weights, turn by turn."""
        turns: list[_Turn] = []
        for point in self._points:
            ends = point.received if point.loss is None else (point.loss, *point.weights)
            needs = {v for e in used(self._graph, ends).equations for v in variables(e.invars)}
            number = max(
                (k + 1 for k, turn in enumerate(turns) if needs & turn.gradients.keys()), default=0
            )
            learned = self._learned(point)
            # Two gradients of a weight are two sums, each of a turn of its own.
            while number < len(turns) and not {*learned}.isdisjoint(turns[number].indices):
                number += 1
            if number == len(turns):
                turns.append(_Turn({}, {}, {}, [], []))
            turn, gradients = turns[number], zip(point.gradients, learned, strict=True)
            turn.gradients.update((var, index) for var, index in gradients if index is not None)
            turn.received.extend(point.received)
            if point.loss is not None:
                turn.losses.append(point.loss)
                turn.entered.update(zip(point.values, point.weights, strict=True))
                inner = zip(point.values, learned, strict=True)
                turn.inner.update((var, index) for var, index in inner if index is not None)
        return turns

    def _learned(self, point: GradientPoint) -> list[int | None]:
        """Returns the number of the trainable variable of each gradient; None: it is not used."""
        if point.loss is None:
            return list(point.indices)
        pairs = zip(point.gradients, point.weights, strict=True)
        return [self._index_of(weight) if var in self._read else None for var, weight in pairs]

    def _index_of(self, weight: Any) -> int:
        """Returns the number of the trainable variable that a value is or has become, else -1."""
        if _is_among(weight, self._slots):
            role, index = self._slots[weight]
            return index if role == "trainable" else -1
        gradients = {var for point in self._points for var in point.gradients}
        graph = used(self._graph, [weight], gradients)
        slots = [self._slots[var] for var in graph.invars if var in self._slots]
        indices = [index for role, index in slots if role == "trainable"]
        return indices[0] if len(indices) == 1 and "batch" not in dict(slots) else -1

    def _is_of_weights(self, point: GradientPoint) -> bool:
        learned = [index for index in self._learned(point) if index is not None]
        return bool(learned) and -1 not in learned

    def _why_not_cut(self, updated: Sequence[Slot]) -> str:
        """Returns the reason why no stages can be made of the step."""
        points = self._points
        if self.turns > 1 or len(self._turns[0].losses) > 1:
            lines = "; ".join(point.place for point in points)
            return f"it takes several gradients, and stages are of one loss: {lines}"
        if not self._turns[0].losses:
            return "it computes its gradients by itself, and not by jax.value_and_grad of a loss"
        if updated:
            name = variable_text(self._model, *updated[0])
            return f"{name} follows from its gradients, and stages update weights alone"
        if self._reads_others():
            return "reads values besides weights and gradients for its update"
        return f"its logs or metrics follow from gradients, which no stage has: {points[0].place}"

    def _reads_others(self) -> bool:
        """Whether the update reads more than weights, gradients and the optimizer's values."""
        graph = used(self._graph, list(self._updated.values()), self._turns[0].gradients)
        roles = {self._slots[var][0] for var in graph.invars if var in self._slots}
        return bool(roles - {"trainable", "optimizer"})

    def _refusal(self, cause: str) -> ModelError:
        name = f"{type(self._model).__name__} {self._model.name!r}"
        return ModelError(f"The train_step() of {name} {cause}.")


@dataclass(slots=True)
class _Turn:
    """Gradients that are taken at the same weights.

    Attributes:
        entered: variables within differentiated functions, and the weights that they stand for.
        inner: those of them with regard to which gradients are used, and the number of the weight.
        gradients: variables that stand for gradients, and the number of the weight.
        losses: results of the functions.
        received: gradients that the step computes itself.
    """

    entered: dict[Var, Any]
    inner: dict[Var, int]
    gradients: dict[Var, int]
    losses: list[Any]
    received: list[Any]

    @property
    def indices(self) -> set[int]:
        """Numbers of the weights whose gradients are taken."""
        return set(self.gradients.values())

    def as_values(self, gradients: Gradients) -> Values:
        """Returns the values of the variables that stand for gradients."""
        return {var: gradients[k].astype(var.aval.dtype) for var, k in self.gradients.items()}


def _slots(state: State, **trees: ArrayTree) -> list[Slot]:
    """Returns the places of the leaves of a state and of other trees."""
    slots = [(role, index) for role, part in state.items() for index in range(len(part))]
    return slots + [slot for role, tree in trees.items() for slot in _named(role, tree)]


def _named(role: str, tree: ArrayTree) -> list[Slot]:
    return [(role, index) for index in range(len(jax.tree.leaves(tree)))]


def _with(state: State, values: Mapping[Slot, Any]) -> State:
    """Returns a state with other values in some places."""
    return State(
        *(
            tuple(values.get((role, index), old) for index, old in enumerate(part))
            for role, part in state.items()
        )
    )


def _is_among(atom: Any, found: Collection[Var]) -> bool:
    return not is_literal(atom) and atom in found


def _entering(graph: Graph, follows: Collection[Var]) -> list[Var]:
    """Returns the results of equations, not among `follows`, that equations of `follows` take."""
    makes = {var for equation in graph.equations for var in equation.outvars} - set(follows)
    taking = (e for e in graph.equations if any(var in follows for var in e.outvars))
    taken = [var for equation in taking for var in variables(equation.invars)]
    return [var for var in dict.fromkeys(taken) if var in makes]


def _optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers of a model, in its attributes as well."""
    found = [model.optimizer, *vars(model).values()]
    kept = [each for each in found if isinstance(each, keras.optimizers.Optimizer)]
    return list({id(each): each for each in kept}.values())


def _spec(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
