"""Taking jaxprs apart and building functions of parts. Checked on jax 0.10.0, 0.10.2, 0.12.0.1.

`jax.extend.core` has the classes, whose documentation warns of changes. Private besides: the scope
of an equation, the debugging facts that a new jaxpr must carry, and the removal of unused
equations from conditionals and loops.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import jax
from jax import api_util
from jax.extend import core as extend_core
from jax.interpreters import ad, batching, partial_eval

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class Var(Protocol):
    """A variable of a jaxpr, hashed and compared by identity."""

    @property
    def aval(self) -> Any:
        """Its abstract value: shape, dtype and more, of a class that is private."""
        ...


class Equation(Protocol):
    """An equation of a jaxpr: an operation with its inputs and results."""

    invars: list[Any]  # variables or literals
    outvars: list[Any]  # variables
    params: dict[str, Any]
    source_info: Any

    @property
    def primitive(self) -> Any: ...

    @property
    def effects(self) -> AbstractSet[Any]: ...

    def replace(
        self,
        *,
        invars: list[Any] = ...,
        outvars: list[Any] = ...,
        params: Mapping[str, object] = ...,
        source_info: Any = ...,
    ) -> Any:
        """Returns the equation with other inputs, results, parameters or names."""
        ...


Atom: TypeAlias = Var | extend_core.Literal


class HostWork(Protocol):
    """Work of the host for which an equation stands."""

    def refuse(self, place: str) -> NoReturn:
        """Raises the error for an equation that the host cannot reach, as it is in `place`."""
        ...


@dataclass(frozen=True, slots=True)
class Graph:
    """Equations between variables: a jaxpr, and beside it the values of its constants."""

    invars: tuple[Var, ...]
    outvars: tuple[Any, ...]  # variables or literals
    equations: tuple[Equation, ...]
    constants: dict[Var, Any]


@dataclass(frozen=True, slots=True)
class Loop:
    """A `jax.lax.scan` as it was traced. Its inputs: constants, carried values, sequences."""

    body: Graph  # of one iteration
    num_constants: int
    num_carried: int
    length: int
    reverse: bool
    unroll: int


def as_loop(equation: Equation) -> Loop | None:
    """Returns an equation that is a `jax.lax.scan` as a loop, None for any other."""
    if equation.primitive.name != "scan":
        return None
    params = equation.params
    closed = params["jaxpr"]
    jaxpr: Any = closed.jaxpr
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    return Loop(
        Graph(tuple(jaxpr.invars), tuple(jaxpr.outvars), tuple(jaxpr.eqns), constants),
        *_inputs_of_loop(params),
        params["length"],
        params["reverse"],
        params["unroll"],
    )


def _inputs_of_loop(params: dict[str, Any]) -> tuple[int, int]:
    """Returns the numbers of constants and of carried values among the inputs of a loop."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()  # from jax 0.12 on
    return len(constants), len(carried)


def trace(
    function: Callable[..., object], *arguments: object, axes: Sequence[tuple[str, int]] = ()
) -> tuple[Graph, Any]:
    """Traces `function` at specs, and returns its graph and the tree of its result's specs.

    Args:
        function: of arrays.
        *arguments: specs.
        axes: names and sizes of the axes of a mesh over which it adds up.
    """
    make = jax.make_jaxpr(function, axis_env=axes or None, return_shape=True)
    closed, result = make(*arguments)
    jaxpr: Any = closed.jaxpr
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    return Graph(tuple(jaxpr.invars), tuple(jaxpr.outvars), tuple(jaxpr.eqns), constants), result


_HOST_WORK = extend_core.Primitive("host_work")
_HOST_WORK.multiple_results = True
_HOST_WORK.def_abstract_eval(lambda *_, work, avals: list(avals))
ad.primitive_jvps[_HOST_WORK] = lambda *_, work, avals: work.refuse("a gradient")
batching.primitive_batchers[_HOST_WORK] = lambda *_, work, avals: work.refuse("jax.vmap")


def add_host_work(work: HostWork, inputs: Sequence[Any], results: Sequence[Atom]) -> list[Any]:
    """Adds an equation to the current trace that stands for work of the host.

    Args:
        work: that the host will do.
        inputs: of the equation.
        results: variables or literals of another graph, of the types of the results.
    """
    return _HOST_WORK.bind(*inputs, work=work, avals=tuple(atom.aval for atom in results))


def host_work(equation: Equation) -> Any:
    """Returns the work of the host for which an equation stands; None for any other equation."""
    return equation.params["work"] if equation.primitive is _HOST_WORK else None


def inner_host_work(equations: Iterable[Equation]) -> tuple[str, Any] | None:
    """Returns work of the host within a loop, a conditional or a call, and the name of that one."""
    for equation in equations:
        for body in inner_equations(equation):
            for inner in body:
                if (work := host_work(inner)) is not None:
                    return equation.primitive.name, work
            if (found := inner_host_work(body)) is not None:
                return found
    return None


def is_literal(atom: Atom) -> "TypeIs[extend_core.Literal]":
    """Whether an input of an equation is a number written into it."""
    return isinstance(atom, extend_core.Literal)


def variables(atoms: Iterable[Atom]) -> Iterator[Var]:
    """Yields the variables among `atoms`."""
    return (atom for atom in atoms if not is_literal(atom))


def spec_of(var: Var) -> jax.ShapeDtypeStruct:
    """Returns the spec of a value."""
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)


def scope(equation: Equation) -> str:
    """Returns the names of `jax.named_scope` around an equation, outermost first."""
    return str(equation.source_info.name_stack)


def inner_scopes(equation: Equation) -> Iterator[str]:
    """Yields the scopes of the equations within a loop, a conditional or a jitted call."""
    for body in inner_equations(equation):
        for inner in body:
            yield scope(inner)
            yield from inner_scopes(inner)


def inner_equations(equation: Equation) -> Iterator[Sequence[Equation]]:
    """Yields the equations of each body of a loop, a conditional or a jitted call."""
    for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
        if _is_jaxpr(leaf):
            yield getattr(leaf, "jaxpr", leaf).eqns


def primitive_counts(equations: Sequence[Equation]) -> Counter[str]:
    """Counts each primitive in equations, nested ones included."""
    counts: Counter[str] = Counter()
    pending: list[Sequence[Equation]] = [equations]
    while pending:
        for equation in pending.pop():
            counts[equation.primitive.name] += 1
            pending.extend(inner_equations(equation))
    return counts


def with_effects(graph: Graph) -> list[Equation]:
    """Returns the equations with effects besides their results, such as printing."""
    return [equation for equation in graph.equations if equation.effects]


def used(
    graph: Graph,
    outvars: Sequence[Atom],
    inputs: Iterable[Var] = (),
    also: Iterable[Equation] = (),
) -> Graph:
    """Returns the equations of `graph` from which `outvars` follow.

    Args:
        graph: with all equations.
        outvars: the results, variables of the graph or literals.
        inputs: further inputs, in place of the equations that compute these variables.
        also: equations to keep for their effects, whether or not their results are needed.

    Returns:
        A graph whose `invars` are those it uses: of the graph's, in their order, then of `inputs`.
    """
    inputs = tuple(inputs)
    stop = set(inputs)
    needed = set(variables(outvars))
    kept: list[Equation] = []
    wanted = set(map(id, also))
    for equation in reversed(graph.equations):
        makes = any(out in needed and out not in stop for out in equation.outvars)
        if makes or id(equation) in wanted:
            kept.append(equation)
            needed.update(variables(equation.invars))
    invars = [var for var in (*graph.invars, *inputs) if var in needed]
    constants = {var: value for var, value in graph.constants.items() if var in needed}
    return Graph(tuple(dict.fromkeys(invars)), tuple(outvars), tuple(reversed(kept)), constants)


def needed(graph: Graph) -> Graph:
    """Returns `graph` without the equations that its results do not need; its inputs stay."""
    kept = used(graph, graph.outvars, also=with_effects(graph))
    return Graph(graph.invars, kept.outvars, kept.equations, kept.constants)


def first_needs(
    graph: Graph, numbers: Sequence[int | None], results: Mapping[Var, int]
) -> tuple[dict[Var, int], list[int | None]]:
    """Returns the first part of a graph that needs each variable, and the part of each equation.

    Args:
        graph: whose equations are in numbered parts, such as stages.
        numbers: the part of each equation; None: the first one that needs its results.
        results: of outputs that are needed, the part that needs them.

    Returns:
        The part of each variable, and those of the equations; None where nothing needs them.
    """
    needed = dict(results)
    complete: list[int | None] = []
    for equation, number in zip(reversed(graph.equations), reversed(numbers), strict=True):
        if number is None:
            number = min((needed[var] for var in equation.outvars if var in needed), default=None)
        complete.append(number)
        if number is not None:
            for var in variables(equation.invars):
                needed[var] = min(number, needed.get(var, number))
    return needed, complete[::-1]


def pruned(graph: Graph, inputs: Iterable[Var] = ()) -> Graph:
    """Returns the used equations of `graph`, inside conditionals and loops too; see `used`."""
    kept = used(graph, graph.outvars, inputs)
    names = (*kept.constants, *kept.invars)
    without_constants = Graph(names, kept.outvars, kept.equations, {})
    jaxpr, is_used = partial_eval.dce_jaxpr(_jaxpr(without_constants), [True] * len(kept.outvars))
    names = [var for var, use in zip(names, is_used, strict=True) if use]
    # `dce_jaxpr` keeps the variables of the equations that it keeps.
    constants = {var: kept.constants[var] for var in names if var in kept.constants}
    invars = tuple(var for var in names if var not in constants)
    pruned_equations: list[Any] = jaxpr.eqns
    return Graph(invars, tuple(jaxpr.outvars), tuple(pruned_equations), constants)


def as_function(graph: Graph) -> Callable[..., list[Any]]:
    """Returns a function of the values of `graph.invars` that returns those of its `outvars`."""
    jaxpr: Any = _jaxpr(graph)
    closed = extend_core.ClosedJaxpr(jaxpr, list(graph.constants.values()))
    return extend_core.jaxpr_as_fun(closed)


def evaluated(equation: Equation, values: Mapping[Var, Any]) -> list[Any]:
    """Returns the results of an equation, in its scope, from the values of variables."""
    taken = tuple(dict.fromkeys(variables(equation.invars)))
    run = as_function(Graph(taken, tuple(equation.outvars), (equation,), {}))
    return run(*(values[var] for var in taken))


def renamed(graph: Graph, names: Mapping[Var, Atom], constants: Mapping[Var, Any]) -> Graph:
    """Returns `graph` with other variables or literals in the place of some of its inputs.

    Args:
        graph: whose inputs are replaced.
        names: replacements of inputs; several inputs may become one.
        constants: of another graph; a replacement among these becomes a constant of this one.
    """

    def read(atom: Atom) -> Atom:
        return atom if is_literal(atom) else names.get(atom, atom)

    equations = [e.replace(invars=list(map(read, e.invars))) for e in graph.equations]
    outvars = tuple(map(read, graph.outvars))
    taken = {var: constants[var] for var in variables(names.values()) if var in constants}
    invars = [read(var) for var in graph.invars]
    invars = [var for var in dict.fromkeys(variables(invars)) if var not in taken]
    return Graph(tuple(invars), outvars, tuple(equations), {**graph.constants, **taken})


def inlined(graph: Graph) -> Graph:
    """Returns `graph` with the equations of its jitted calls in their place."""
    constants = dict(graph.constants)
    equations: list[Equation] = []
    names: dict[Var, Any] = {}

    def read(atom: Atom) -> Atom:
        return atom if is_literal(atom) else names.get(atom, atom)

    def add(eqns: Iterable[Equation]) -> None:
        for equation in eqns:
            inner = equation.params.get("jaxpr")
            if equation.primitive.name not in ("jit", "pjit") or inner is None:
                fresh = [names.get(var, var) for var in equation.outvars]
                invars = [read(atom) for atom in equation.invars]
                equations.append(equation.replace(invars=invars, outvars=fresh))
                continue
            body = inner.jaxpr
            # A jaxpr that is called twice has one set of variables: each call gets its own.
            bound = dict(zip(body.invars, map(read, equation.invars), strict=True))
            for var, value in zip(body.constvars, inner.consts, strict=True):
                bound[var] = _like(var)
                constants[bound[var]] = value
            for eqn in body.eqns:
                bound.update((out, _like(out)) for out in eqn.outvars)
            saved = {var: names[var] for var in bound if var in names}
            names.update(bound)
            add(body.eqns)
            results = [read(atom) for atom in body.outvars]
            for var in bound:
                names.pop(var, None)
            names.update(saved)
            names.update(zip(equation.outvars, results, strict=True))

    add(graph.equations)
    return Graph(graph.invars, tuple(map(read, graph.outvars)), tuple(equations), constants)


def _like(var: Var) -> Var:
    # A `DropVar` stands for a value that is not used; its copy may be a plain variable.
    return extend_core.Var(var.aval)


def _jaxpr(graph: Graph) -> extend_core.Jaxpr:
    def function(*arguments: object) -> object:
        return arguments

    effects = frozenset().union(*(equation.effects for equation in graph.equations))
    info = api_util.debug_info("millrace", function, graph.invars, {})
    info = info._replace(result_paths=("",) * len(graph.outvars))
    constants: list[Any] = list(graph.constants)
    invars: list[Any] = list(graph.invars)
    equations: list[Any] = list(graph.equations)
    return extend_core.Jaxpr(
        constants, invars, list(graph.outvars), equations, effects, debug_info=info
    )


def _is_jaxpr(leaf: object) -> bool:
    return isinstance(leaf, (extend_core.ClosedJaxpr, extend_core.Jaxpr))
