"""Taking jaxprs apart: the parts compute what the whole computes."""

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.jaxpr import (
    as_function,
    inlined,
    inner_scopes,
    pruned,
    renamed,
    trace,
    used,
    with_effects,
)

F32 = jax.ShapeDtypeStruct((3,), jnp.float32)
X, Y = np.arange(3, dtype=np.float32), np.ones(3, np.float32)


@jax.jit
def called(x, y):
    return jnp.sin(x) + y, x * 2


def whole(x, y):
    a, b = called(x, y)
    c, d = called(b, a)  # the same jaxpr again, with other values
    table = jnp.asarray(np.arange(3, dtype=np.float32))  # a constant
    return a + table, c * d


def test_a_part_takes_what_it_needs_only():
    graph, _ = trace(lambda x, y: (jnp.sin(x), jnp.cos(y)), F32, F32)
    part = used(graph, graph.outvars[:1])
    assert part.invars == graph.invars[:1]
    assert len(part.equations) == 1


def test_a_part_starts_from_what_is_known():
    graph, _ = trace(lambda x, y: jnp.sin(jnp.cos(x) * y), F32, F32)
    product = graph.equations[1].outvars[0]
    part = used(graph, graph.outvars, [product])
    assert part.invars == (product,)
    (found,) = as_function(part)(X)
    np.testing.assert_array_equal(found, jnp.sin(X))


def test_inlining_and_pruning_change_no_value():
    graph, _ = trace(whole, F32, F32)
    for changed in (inlined(graph), pruned(graph), pruned(inlined(graph))):
        assert changed.invars == graph.invars
        for found, wanted in zip(as_function(changed)(X, Y), whole(X, Y), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert all(e.primitive.name not in ("jit", "pjit") for e in inlined(graph).equations)


def test_pruning_reaches_into_conditionals():
    def choose(x, y):
        return jax.lax.cond(x[0] > 0, lambda: (x * 2, y * 3), lambda: (x, y))

    graph, _ = trace(choose, F32, F32)
    first = used(graph, graph.outvars[:1])
    assert len(first.invars) == 2  # the conditional takes both
    assert pruned(first).invars == graph.invars[:1]


def test_an_input_may_become_another_name_or_a_constant():
    graph, _ = trace(lambda x, y: x * 2 + y, F32, F32)
    other, _ = trace(lambda x: x, F32)
    x, y = graph.invars
    same = renamed(graph, {x: other.invars[0], y: other.invars[0]}, {})
    assert same.invars == other.invars
    np.testing.assert_array_equal(as_function(same)(X)[0], X * 3)
    constant = renamed(graph, {y: other.invars[0]}, {other.invars[0]: Y})
    assert constant.invars == (x,)
    np.testing.assert_array_equal(as_function(constant)(X)[0], X * 2 + Y)


def test_effects_are_kept_where_they_are_asked_for():
    def prints(x):
        jax.debug.print("{}", x)
        return jnp.sin(x)

    graph, _ = trace(prints, F32)
    effects = with_effects(graph)
    assert len(effects) == 1
    assert len(used(graph, graph.outvars).equations) == 1
    assert len(used(graph, graph.outvars, also=effects).equations) == 2


def test_scopes_within_a_loop_are_seen():
    def turns(x):
        def body(carry, _):
            with jax.named_scope("inside"):
                return carry * 2, None

        return jax.lax.scan(body, x, None, length=2)[0]

    graph, _ = trace(turns, F32)
    assert any("inside" in name for e in graph.equations for name in inner_scopes(e))
