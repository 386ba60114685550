"""A function that runs kernels in a planned order, and a compiler that keeps to it.

    order      0 1 2 3 4  |  1 5  |  0 6 7         | is a barrier
    at the |   what is computed again waits for what comes before it

Compilers merge equal computations, and run what they can as early or as late as they like. So a
barrier (`jax.lax.optimization_barrier`) stands before each kernel that runs again, after one that
was the last to read a large array, and before one that reads nothing large and could run at any
time. What was computed since the barrier before and is still needed passes through it, with the
inputs of the kernels after it: all of the former is done before any of the latter begins.

XLA's compilers for GPU and TPU honour barriers. That for CPU does so without one of its passes, and
its scheduler keeps memory low only if told to (`compiler_options`). For orders down to half the
memory the compiled peak is then within 12 % of the predicted one in 11 of 12 families of models;
near the least memory it is up to twice that.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from millrace._compat.jaxpr import Atom, Var, as_function, is_literal, variables
from millrace.programs.plan import Recompute
from millrace.programs.recomputation.costs import nbytes
from millrace.programs.recomputation.joint_graph import Joint, Run, combine, partition, select
from millrace.programs.recomputation.kernel_work import KernelWork, Order
from millrace.programs.recomputation.kernels import Kernel

Leaves = list[jax.Array]
Held = tuple[Leaves, Leaves, Leaves]  # learned inputs, other inputs, saved values
Environment = dict[Var, Any]

# Conditionals, which no compiler looks into, kept XLA to an order before, and without options. But
# each part of a loop was compiled by itself, convolutions in them were thirty times slower, and
# U-Nets and MobileNets stayed at three times the predicted memory.
_CPU_OPTIONS = {
    # Keeps barriers in place until equal computations have been merged.
    "xla_disable_hlo_passes": "cse_barrier_expander",
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
}
# Machine code that is not made fast: the memory is the same, and it compiles in half the time.
_QUICK_CPU_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# Of the peak: what a barrier is worth; a kernel that frees less may run early or late. An MLP of 16
# layers at half its memory has 88 barriers and a compiled peak of 1.12 of the predicted one; at 0.1
# it has 73 and the same peak, at 0.3 it has 7 and 1.36.
_LARGE = 0.02
# As JAX names the scope of what runs again: memory reports and lists of operations know what is a
# recomputation by this name, whether `jax.checkpoint` or this file has run it again.
_AGAIN = "rematted_computation"
_SMALL = 4096  # bytes, and FLOPs; a choice: from none to a million the MLP is the same


def compiler_options(platform: str, recompute: Recompute) -> dict[str, Any]:
    """Returns the XLA options for programs that run kernels again."""
    if platform != "cpu":
        return {}
    options = {} if recompute.choice == 0 else options_with_barriers(platform)
    return {**options, **(_QUICK_CPU_OPTIONS if recompute.is_trial else {})}


def options_with_barriers(platform: str) -> dict[str, Any]:
    """Returns the XLA options for programs whose barriers are to stay in place."""
    return dict(_CPU_OPTIONS) if platform == "cpu" else {}


@dataclass(frozen=True)
class OrderedKernels:
    """The kernels of a joint graph, and the order in which they run."""

    joint: Joint
    kernels: Sequence[Kernel]
    work: KernelWork
    order: Order

    # A model in one piece runs `whole`. A stage of a pipeline runs `apart`, since other
    # micro-batches pass between its forward and its backward.
    def whole(self, *values: jax.Array) -> Leaves:
        """Returns results and gradients of the values of the forward's inputs and cotangents."""
        environment = dict(zip(self.joint.graph.invars, values, strict=True))
        self._run(environment, range(len(self.order)))
        results = self._read(environment, self.joint.results)
        gradients = self._read(environment, self.joint.gradients)
        if self.joint.replaced:
            return [*results, *gradients]
        # An update that could come before the last read of a weight would need a copy of it.
        return [*results, *lax.optimization_barrier(gradients)]

    def apart(self, learns: Sequence[bool], answered: Sequence[bool]) -> Run:
        """Returns the forward as a function whose backward runs as planned.

        Args:
            learns: as for `joint_graph`.
            answered: as for `joint_graph`.
        """
        joint, middle = self.joint, self._middle
        early, late = range(middle), range(middle, len(self.order))
        saved = self._alive_at(middle)

        def call(learned: Leaves, others: Leaves) -> tuple[Leaves, Leaves]:
            values = combine(learns, learned, others)
            environment = dict(zip(joint.inputs, values, strict=True))
            self._run(environment, early)
            return self._read(environment, joint.results), self._read(environment, saved)

        # The backward is in the order already. Differentiated by JAX once more, it would keep the
        # residuals that JAX chooses, and the order would be lost.
        @jax.custom_vjp
        def run(learned: Leaves, others: Leaves) -> Leaves:
            return call(learned, others)[0]

        def forward(learned: Leaves, others: Leaves) -> tuple[Leaves, Held]:
            results, kept = call(learned, others)
            return results, (learned, others, kept)

        def backward(held: Held, cotangents: Leaves) -> tuple[Leaves, None]:
            learned, others, kept = held
            values = combine(learns, learned, others)
            environment = dict(zip(joint.inputs, values, strict=True))
            environment.update(zip(saved, kept, strict=True))
            environment.update(zip(joint.cotangents, select(cotangents, answered), strict=True))
            self._run(environment, late)
            return self._read(environment, joint.gradients), None

        run.defvjp(forward, backward)
        return lambda *values: run(*partition(learns, values))

    @cached_property
    def _middle(self) -> int:
        """The position where backward begins, with what runs again for its first kernel."""
        first = first_late(self.joint, self.kernels)
        middle = next((p for p, k in enumerate(self.order) if k >= first), len(self.order))
        # What runs again right before the first kernel of backward is for that one. As a part of
        # forward, its results would be held between the two, which they were evicted to avoid.
        while middle and self.order[middle - 1] in self.order[: middle - 1]:
            middle -= 1
        return middle

    def _alive_at(self, position: int) -> list[Var]:
        """Returns the values that are computed before a position and read from there on."""
        names = [var for kernel in self.kernels for var in kernel.outputs]
        read = set(variables(self.joint.gradients))
        for kernel in self.order[position:]:
            read.update(self.kernels[kernel].inputs)
        lifetimes = self.work.lifetimes(self.order)
        alive = {names[value] for value, begin, end in lifetimes if begin < position <= end}
        return [var for var in names if var in alive and var in read]

    def _run(self, environment: Environment, positions: range) -> None:
        """Runs the kernels of some positions, and adds what they compute."""
        free = dict(environment)  # as before any barrier
        # A kernel that ran in forward runs again in backward, though this call sees its first run.
        seen = set(self.order[: positions.start])
        for position in positions:
            held = [var for var in self._barriers.get(position, ()) if var in environment]
            if held:
                through = lax.optimization_barrier([environment[var] for var in held])
                environment.update(zip(held, through, strict=True))
            number = self.order[position]
            kernel, is_small = self.kernels[number], number in self._small
            values = free if is_small else environment
            function = as_function(kernel.graph(self.joint.graph.constants))
            with jax.named_scope(_AGAIN) if number in seen else contextlib.nullcontext():
                results = function(*(values[var] for var in kernel.inputs))
            seen.add(number)
            environment.update(zip(kernel.outputs, results, strict=True))
            if is_small:
                free.update(zip(kernel.outputs, results, strict=True))

    def _read(self, environment: Environment, atoms: Sequence[Atom]) -> Leaves:
        values = {**self.joint.graph.constants, **environment}
        return [atom.val if is_literal(atom) else values[atom] for atom in atoms]

    @cached_property
    def _small(self) -> set[int]:
        """Kernels that take hardly any memory and time, nor do those whose results they read.

        No barrier holds them back, so that the next seed, say, still follows from the seed alone.
        """
        known, small = set(self.joint.inputs), set[int]()
        for number, kernel in enumerate(self.kernels):
            written = sum(map(nbytes, kernel.outputs))
            if kernel.flops <= _SMALL and written <= _SMALL and known.issuperset(kernel.inputs):
                small.add(number)
                known.update(kernel.outputs)
        return small

    @cached_property
    def _barriers(self) -> dict[int, list[Var]]:
        """The values that pass through a barrier before each position that has one."""
        starts = self._starts()
        ends = {(value, begin): end for value, begin, end in self.work.lifetimes(self.order)}
        names = [var for kernel in self.kernels for var in kernel.outputs]
        barriers: dict[int, list[Var]] = {}
        fresh: dict[int, int] = {}  # values computed since the barrier before: their last use
        seen: set[int] = set()
        for position, number in enumerate(self.order):
            if number in self._small:
                continue
            if position in starts:
                # Both sides have to pass: what is computed afterwards takes its inputs from the
                # barrier, and so waits; what was computed before goes into it, and so is done. With
                # the inputs alone, a compiler may still put off what comes before.
                held = [names[value] for value, end in fresh.items() if end >= position]
                barriers[position] = _plain((*self._taken(position, starts, seen), *held))
                fresh = {}
            seen.add(number)
            for value in self.work.outputs[number]:
                fresh[value] = ends[value, position]
        return barriers

    def _starts(self) -> set[int]:
        """Returns the positions before which a barrier stands."""
        large = _LARGE * self.work.peak(self.order)
        freed: dict[int, int] = {}
        for value, _, end in self.work.lifetimes(self.order):
            if value not in self.work.results:
                freed[end] = freed.get(end, 0) + self.work.nbytes[value]
        inputs = set(self.joint.graph.invars)
        starts: set[int] = set()
        seen: set[int] = set()
        runs_again = False
        for position, number in enumerate(self.order):
            kernel, ran_again = self.kernels[number], runs_again
            if number in self._small:
                continue
            runs_again = number in seen
            seen.add(number)
            taken = sum(nbytes(var) for var in kernel.inputs if var not in inputs)
            written = sum(map(nbytes, kernel.outputs))
            # Such as a mask that follows from a seed: nothing else ties it to its place. A quarter,
            # and `written` against it, are choices.
            any_time = taken < large / 4 <= written
            # Of kernels that run again in a row only the first needs a barrier; `_taken` ties the
            # others to it.
            if runs_again > ran_again or freed.get(position - 1, 0) >= large or any_time:
                starts.add(position)
        return starts

    def _taken(self, position: int, starts: set[int], seen: set[int]) -> list[Var]:
        """Returns what the kernels up to the next barrier take from before this one.

        Of kernels that run for the first time only those of the first one: the others may begin
        when they like. Inputs of the step are held back only for kernels that take nothing else:
        where weights pass through a barrier, compilers copy them before they update them.
        """
        inputs = set(self.joint.graph.invars)
        small = {var for number in self._small for var in self.kernels[number].outputs}
        free = inputs | small
        taken: list[Var] = []
        made: set[Var] = set()
        for index in range(position, len(self.order)):
            if index > position and index in starts:
                break
            kernel = self.kernels[self.order[index]]
            if index == position or self.order[index] in seen:
                computed = [var for var in kernel.inputs if var not in free]
                others = [var for var in kernel.inputs if var in inputs]
                taken += [var for var in computed or others if var not in made]
            made.update(kernel.outputs)
        return taken


def first_late(joint: Joint, kernels: Sequence[Kernel]) -> int:
    """Returns the first kernel that needs a cotangent; those before it are forward."""
    late = set(joint.cotangents)
    for number, kernel in enumerate(kernels):
        if not late.isdisjoint(kernel.inputs):
            return number
    return len(kernels)


def _plain(values: Iterable[Var]) -> list[Var]:
    """Returns each value once, without keys of random numbers, which pass through no barrier."""
    return [
        var
        for var in dict.fromkeys(values)
        if not jnp.issubdtype(var.aval.dtype, jax.dtypes.extended)
    ]
