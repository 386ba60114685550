"""The equations of a step in groups that a compiler runs as one: kernels.

    z = x @ w          kernel 0: z            a product is a kernel of its own
    m = mean(z)        kernel 1: m            a reduction, with what is computed for it alone
    c = z - m          repeated: in 2 and 3   cheap, and all that read it can compute it themselves
    a = tanh(c)        kernel 2: a
    g = c * a          kernel 3: g

    s = p + q + r + t  a kernel for each sum: each may run as soon as its terms are there
    w' = w - lr * g    an update of w: it runs as soon as g is there and no other kernel reads w

Only results of kernels are arrays in memory. A plan of what to compute again is made of kernels:
where the compiler fuses otherwise, its peak differs from the predicted one, and the compiled peak
is what counts.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from millrace._compat.jaxpr import Atom, Equation, Graph, Var, variables
from millrace.programs.recomputation.costs import flops_of, has_product, nbytes
from millrace.programs.recomputation.kernel_order import MUCH, depth_first
from millrace.programs.recomputation.kernel_work import Before, KernelWork, with_updates_early

# Computed anew in every kernel that reads them.
_SHAPES = frozenset(
    {"broadcast_in_dim", "copy", "expand_dims", "iota", "name", "reshape", "squeeze"}
)
# Compilers repeat these in the kernels that read them, if none of these needs the array itself.
# XLA draws its line in the same place (`InstructionFusion::IsExpensive` in instruction_fusion.cc):
# it computes an add or a compare anew for each reader, and an exp, a tanh, a root or a division
# once, into an array.
_CHEAP = _SHAPES | {
    "abs", "add", "add_any", "and", "clamp", "convert_element_type", "eq", "ge", "gt",
    "integer_pow", "is_finite", "le", "lt", "max", "min", "mul", "ne", "neg", "not", "or",
    "select_n", "sign", "slice", "square", "sub", "transpose",
}  # fmt: skip
# Run by themselves, on arrays in memory.
_ALONE = frozenset(
    {
        "cholesky", "concatenate", "cond", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum",
        "custom_jvp_call", "custom_vjp_call", "dynamic_update_slice", "eigh", "fft", "gather",
        "lu", "optimization_barrier", "qr", "reduce_window", "reduce_window_max",
        "reduce_window_sum", "scatter", "scatter-add", "scatter_add", "select_and_gather_add",
        "select_and_scatter_add", "shard_map", "sort", "svd", "top_k", "triangular_solve",
    }
)  # fmt: skip
_REDUCTIONS = frozenset(
    {"argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod",
     "reduce_sum", "reduce_xor"}
)  # fmt: skip
_SUMS = frozenset({"add", "add_any"})
# Arrays of its own size that a repeated value may be computed from. Without a limit, the last sum
# of a residual stream would be "repeated" from the terms of all blocks, and keep these in memory
# instead of itself.
_MOST_LARGE = 2
# Of a sum that is one kernel; with more, all of them would be in memory at once. Since long sums
# are one kernel for each term, a WaveNet, whose skips are all added up, gets down to 0.36 of the
# memory of plain training, where it stopped at 0.45.
_MOST_TERMS = 3
_MOST_OF_SLICE = 8  # times its size: what a repeated slice may be of; a choice, not measured


@dataclass(frozen=True, slots=True)
class Kernel:
    """Equations that run as one."""

    equations: tuple[Equation, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]  # that are arrays in memory
    flops: float
    working_bytes: int  # while it runs, besides inputs and outputs
    in_place: bool  # whether its output may take the memory of an input
    repeatable: bool  # False: it prints, or calls back

    def graph(self, constants: Mapping[Var, Any]) -> Graph:
        """Returns the kernel as a graph; `constants` are those of the whole graph."""
        taken = {var for equation in self.equations for var in variables(equation.invars)}
        own = {var: value for var, value in constants.items() if var in taken}
        return Graph(self.inputs, self.outputs, self.equations, own)


def kernels_of(
    graph: Graph,
    stops_at: Callable[[Equation], object] = lambda equation: None,
    replaced: Mapping[Var, Var] | None = None,
    results: Collection[Atom] = (),
) -> list[Kernel]:
    """Returns the kernels of a graph in the order of their last equations.

    Sums and updates come earlier.

    Args:
        graph: without jitted calls; only equations that are used.
        stops_at: whether what an equation reads is to be an array in memory, whoever reads it.
        replaced: by results that take the memory of inputs: those inputs.
        results: of its forward, whose kernels then run depth first.
    """
    kernels = _Fusion(graph, stops_at).kernels()
    # Depth first, since as traced a value waits long for what reads it: a WaveNet at 0.4 of the
    # memory of plain training took 5.9x the FLOPs as traced, and takes 1.4x so. That order knows of
    # no updates, which therefore move up twice. Together with its update, a ConvNeXt keeps to 0.4
    # for 1.01x the FLOPs, and DenseNet121 keeps to it at all; both were refused before.
    if results:
        # Behind all gradients, an update would have its own made late if that is larger than what
        # it is computed from, which would stay in memory or run again there.
        kernels = _with_updates_early(graph, kernels, replaced or {})
        work, made = _numbers(graph, kernels, {})
        order = depth_first(work, [made[var] for var in variables(results) if var in made])
        kernels = [kernels[k] for k in order]
    kernels = _sums_early(kernels, frozenset(variables(graph.outvars)))
    return _with_updates_early(graph, kernels, replaced or {})


class _Fusion:
    """The kernel of each equation, found from the last equation to the first."""

    def __init__(self, graph: Graph, stops_at: Callable[[Equation], object]) -> None:
        self._graph = graph
        self._stops_at = stops_at
        self._equations = graph.equations
        self._results = set(variables(graph.outvars))
        self._maker = {v: k for k, e in enumerate(graph.equations) for v in e.outvars}
        self._readers: dict[Var, list[int]] = defaultdict(list)
        for k, equation in enumerate(graph.equations):
            for var in dict.fromkeys(variables(equation.invars)):
                self._readers[var].append(k)
        self._large = _large_inputs(graph)
        self._long_sums = self._in_long_sums()
        self._repeated = [False] * len(graph.equations)
        self._kernel = list(range(len(graph.equations)))  # of each: the number of its last one

    def kernels(self) -> list[Kernel]:
        # From the end, since it depends on the readers of a value what becomes of it: whether they
        # are in one kernel, and whether they can take a value that is no array.
        for k in reversed(range(len(self._equations))):
            self._place(k)
        members: dict[int, list[int]] = defaultdict(list)
        for k, kernel in enumerate(self._kernel):
            if not self._repeated[k]:
                members[kernel].append(k)
        return [self._make(kernel, members[kernel]) for kernel in sorted(members)]

    def _place(self, k: int) -> None:
        equation = self._equations[k]
        # What prints does so once, at its place, and a result is an array whoever else reads it.
        if equation.effects or not self._results.isdisjoint(equation.outvars):
            return
        if k in self._long_sums:
            return
        readers = [j for var in equation.outvars for j in self._readers[var]]
        name = equation.primitive.name
        fusible = all(self._takes_values(j) for j in readers)
        if (
            name in _SHAPES
            or _makes_keys(equation)  # as an array it could be planned for, and never held back
            or (name in _CHEAP and fusible and self._is_worth_repeating(k))
        ):
            self._repeated[k] = True
        elif fusible and _is_elementwise(equation):
            kernels = {kernel for j in readers for kernel in self._kernels_reading(j)}
            # With two that read it, a tanh would be computed twice; compilers write it down.
            if len(kernels) == 1:
                self._kernel[k] = kernels.pop()

    def _in_long_sums(self) -> set[int]:
        """Returns the sums whose results are terms of longer ones of too many terms."""
        terms: dict[int, list[int]] = {}  # of each sum: those that it adds up, itself included
        long: set[int] = set()
        for k, equation in enumerate(self._equations):
            if equation.primitive.name not in _SUMS:
                continue
            terms[k] = [k]
            for var in dict.fromkeys(variables(equation.invars)):
                maker = self._maker.get(var)
                size = nbytes(equation.outvars[0])
                if maker in terms and self._readers[var] == [k] and nbytes(var) == size:
                    terms[k] += terms[maker]
            if len(terms[k]) + 1 > _MOST_TERMS:
                long.update(terms[k][1:])
        return long

    def _is_worth_repeating(self, k: int) -> bool:
        """Whether what a value is computed from is not much more to keep than the value."""
        large = self._large[k]
        own = max(nbytes(var) for var in self._equations[k].outvars)
        most = _MOST_OF_SLICE if self._equations[k].primitive.name == "slice" else 2
        return len(large) <= _MOST_LARGE and all(nbytes(var) <= most * own for var in large)

    def _takes_values(self, k: int) -> bool:
        """Whether an equation can take values that are computed in its own kernel."""
        equation = self._equations[k]
        if self._stops_at(equation):
            return False
        if self._repeated[k]:
            readers = [j for var in equation.outvars for j in self._readers[var]]
            return all(map(self._takes_values, readers))
        return _is_elementwise(equation) or equation.primitive.name in _REDUCTIONS

    def _kernels_reading(self, k: int) -> set[int]:
        """Returns the kernels that an equation is in."""
        if not self._repeated[k]:
            return {self._kernel[k]}
        readers = [j for var in self._equations[k].outvars for j in self._readers[var]]
        return {kernel for j in readers for kernel in self._kernels_reading(j)}

    def _make(self, kernel: int, members: Sequence[int]) -> Kernel:
        inside = set(members)
        pending = list(members)
        # Each kernel gets copies of its own of what is repeated, and of what that follows from.
        while pending:
            for var in variables(self._equations[pending.pop()].invars):
                maker = self._maker.get(var)
                if maker is not None and self._repeated[maker] and maker not in inside:
                    inside.add(maker)
                    pending.append(maker)
        equations = tuple(self._equations[k] for k in sorted(inside))
        made = {var for equation in equations for var in equation.outvars}
        constants = self._graph.constants
        taken = dict.fromkeys(var for e in equations for var in variables(e.invars))
        outputs = tuple(
            var
            for k in members
            for var in self._equations[k].outvars
            if var in self._results or not self._is_read_within(var, kernel)
        )
        return Kernel(
            equations,
            tuple(var for var in taken if var not in made and var not in constants),
            outputs,
            sum(map(flops_of, equations)),
            sum(map(_working_bytes, equations)),
            all(_is_elementwise(equation) for equation in equations),
            not any(equation.effects for equation in equations),
        )

    def _is_read_within(self, var: Var, kernel: int) -> bool:
        """Whether only equations of one kernel read a value."""
        return all(self._kernels_reading(j) == {kernel} for j in self._readers[var])


def _sums_early(kernels: Sequence[Kernel], results: frozenset[Var]) -> list[Kernel]:
    """Returns the kernels in an order in which sums run as soon as that frees memory.

    Args:
        kernels: in an order in which they can run.
        results: values that stay in memory.
    """
    readers = _readers(kernels)  # those that have not run
    made = {var for kernel in kernels for var in kernel.outputs}
    missing = [sum(var in made for var in kernel.inputs) for kernel in kernels]
    is_sum = [all(e.primitive.name in _SUMS for e in kernel.equations) for kernel in kernels]

    def frees(k: int) -> bool:
        # A sum that frees less than it writes would take memory from now on, for nothing.
        last = (v for v in kernels[k].inputs if v in made and v not in results)
        freed = sum(nbytes(var) for var in last if readers[var] == {k})
        return freed > 0 and freed >= sum(map(nbytes, kernels[k].outputs))

    order: dict[int, None] = {}
    for first in range(len(kernels)):
        pending = [first]
        while pending:
            k = pending.pop()
            if k in order or (k != first and (missing[k] or not is_sum[k] or not frees(k))):
                continue
            order[k] = None
            for var in kernels[k].outputs:
                for reader in readers[var]:
                    missing[reader] -= 1
            for var in kernels[k].inputs:
                readers[var].discard(k)
            near = {r for var in (*kernels[k].inputs, *kernels[k].outputs) for r in readers[var]}
            pending += sorted((each for each in near if is_sum[each]), reverse=True)
    return [kernels[k] for k in order]


def _with_updates_early(
    graph: Graph, kernels: Sequence[Kernel], replaced: Mapping[Var, Var]
) -> list[Kernel]:
    """Returns kernels in an order in which each update runs as soon as it can."""
    updates = _updates(graph, kernels, replaced)
    return [kernels[k] for k in with_updates_early(tuple(range(len(kernels))), updates)]


def _updates(
    graph: Graph, kernels: Sequence[Kernel], replaced: Mapping[Var, Var]
) -> dict[int, Before]:
    """Returns the kernels that can update inputs early, each with those that come before it.

    An update has no product; only new values, or other updates, follow from it.
    """
    if not replaced:
        return {}
    results = set(variables(graph.outvars)) - set(replaced)
    readers = _readers(kernels)
    found: dict[int, Before] = {}
    maker = {var: k for k, kernel in enumerate(kernels) for var in kernel.outputs}
    for k, kernel in reversed(list(enumerate(kernels))):
        after = {reader for var in kernel.outputs for reader in readers[var]}
        # Only its update reads a gradient, so by what follows from it, it would be a part of that;
        # a product tells them apart.
        is_light = kernel.repeatable and not any(map(has_product, kernel.equations))
        large = MUCH * sum(map(nbytes, kernel.outputs))
        num_large = sum(var in maker and nbytes(var) >= large for var in kernel.inputs)
        # A sum over an activation and its gradient, as in a depthwise convolution, is a gradient.
        is_light = is_light and num_large <= 1
        if is_light and results.isdisjoint(kernel.outputs) and after <= found.keys():
            old = [replaced[var] for var in kernel.outputs if var in replaced]
            makers = {maker[var] for var in kernel.inputs if var in maker}
            others = {reader for var in old for reader in readers[var]} - {k}
            found[k] = Before(tuple(sorted(makers)), tuple(sorted(others)))
    return dict(sorted(found.items()))


def _readers(kernels: Sequence[Kernel]) -> dict[Var, set[int]]:
    """Returns for each value the kernels that read it."""
    readers: dict[Var, set[int]] = defaultdict(set)
    for k, kernel in enumerate(kernels):
        for var in kernel.inputs:
            readers[var].add(k)
    return readers


def _large_inputs(graph: Graph) -> list[set[Var]]:
    """Returns for each equation the arrays that its result follows from by cheap equations alone.

    Those much smaller than the result do not count, nor do the inputs of the graph.
    """
    follows: dict[Var, set[Var]] = {}
    large: list[set[Var]] = []
    for equation in graph.equations:
        least = max((nbytes(var) for var in equation.outvars), default=0) // 2
        found: set[Var] = set()
        for var in variables(equation.invars):
            found |= {each for each in follows.get(var, ()) if nbytes(each) >= least}
        large.append(found)
        cheap = equation.primitive.name in _CHEAP and len(found) <= _MOST_LARGE
        for var in equation.outvars:
            follows[var] = found if cheap else {var}
    return large


def _makes_keys(equation: Equation) -> bool:
    """Whether the results are keys of random numbers, which no barrier can hold back."""
    return all(jnp.issubdtype(v.aval.dtype, jax.dtypes.extended) for v in equation.outvars)


def _is_elementwise(equation: Equation) -> bool:
    name = equation.primitive.name
    if name in _ALONE or name in _REDUCTIONS or equation.effects:
        return False
    return not has_product(equation)


def _working_bytes(equation: Equation) -> int:
    """Returns what compilers for CPU write down besides the result."""
    name = equation.primitive.name
    if name == "select_and_scatter_add":  # places and values of each window, twice
        return 4 * sum(map(nbytes, equation.outvars))
    if name == "conv_general_dilated" and equation.params["dimension_numbers"].lhs_spec[0] != 0:
        return nbytes(equation.invars[0])  # the image, in another order
    return 0


def work_of(
    graph: Graph, kernels: Sequence[Kernel], replaced: Mapping[Var, Var] | None = None
) -> KernelWork:
    """Returns the kernels of a graph as numbers. Its inputs are in memory anyway.

    Args:
        graph: that the kernels are of.
        kernels: of the graph.
        replaced: as for `kernels_of`.
    """
    return _numbers(graph, kernels, replaced or {})[0]


def _numbers(
    graph: Graph, kernels: Sequence[Kernel], replaced: Mapping[Var, Var]
) -> tuple[KernelWork, dict[Var, int]]:
    """Returns the kernels as numbers, and the number of each value."""
    values = [var for kernel in kernels for var in kernel.outputs]
    number = {var: k for k, var in enumerate(values)}
    work = KernelWork(
        inputs=tuple(tuple(number[v] for v in k.inputs if v in number) for k in kernels),
        outputs=tuple(tuple(number[v] for v in k.outputs) for k in kernels),
        # A new weight takes the place of the old one, which is an argument and so not counted here.
        nbytes=tuple(0 if var in replaced else nbytes(var) for var in values),
        flops=tuple(kernel.flops for kernel in kernels),
        working_bytes=tuple(kernel.working_bytes for kernel in kernels),
        in_place=tuple(kernel.in_place for kernel in kernels),
        repeatable=tuple(kernel.repeatable for kernel in kernels),
        results=frozenset(number[v] for v in variables(graph.outvars) if v in number),
        updates=_updates(graph, kernels, replaced),
    )
    return work, number
