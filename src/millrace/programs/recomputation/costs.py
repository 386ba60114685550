"""The FLOPs of equations and layer calls, and the bytes of values.

XLA's own analysis counts the body of a loop once, so an LSTM over 100 steps would look as cheap as
over one; and it needs a lowering for each call. Here products and convolutions are counted exactly,
random numbers as a hundred FLOPs each, and every other operation as one FLOP for each element of
its result.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

from millrace._compat.jaxpr import Equation, Graph, Var, inner_equations, scope

# The primitives that take most of the FLOPs: all others are cheap to run again. Random numbers are
# among them, since each takes a hundred operations.
PRODUCTS = frozenset(
    {
        "conv_general_dilated",
        "dot_general",
        "ragged_dot_general",
        "random_bits",
        "rng_bit_generator",
        "scan",
        "threefry2x32",
        "while",
    }
)
_CALL = re.compile(r"mr\.L(\d+)")


def flops_of_calls(graph: Graph, num_calls: int) -> list[float]:
    """Returns the FLOPs of each call.

    Args:
        graph: a trace of the model, forward or with its gradients, under `marked_calls`.
        num_calls: number of leaf calls.
    """
    flops = [0.0] * num_calls
    for equation in graph.equations:
        calls = _CALL.findall(scope(equation))
        if calls:
            flops[int(calls[-1])] += flops_of(equation)
    return flops


def flops_of(equation: Equation) -> float:
    """Returns the FLOPs of one equation, including those of its loops and branches."""
    name, params = equation.primitive.name, equation.params
    shapes = [tuple(var.aval.shape) for var in equation.invars]
    elements = sum(math.prod(var.aval.shape) for var in equation.outvars)
    if name == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return 2.0 * elements * math.prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = params["dimension_numbers"].rhs_spec  # axes of outputs, inputs, then space
        return 2.0 * elements * math.prod(shapes[1][axis] for axis in kernel[1:])
    bodies = list(inner_equations(equation))
    if not bodies:
        return float(elements) * (_RANDOM if name in _RANDOM_BITS else 1.0)
    costs = [sum(map(flops_of, body)) for body in bodies]
    if name == "cond":
        return max(costs)
    return sum(costs) * _iterations(name, params)


_RANDOM = 100.0  # operations for each random number
_RANDOM_BITS = frozenset({"random_bits", "rng_bit_generator", "threefry2x32"})


def _iterations(name: str, params: Mapping[str, object]) -> int:
    # The number of iterations of a `while` is not in its equation.
    return cast(int, params["length"]) if name == "scan" else 1


def shares(flops: Sequence[float]) -> list[float]:
    """Returns each entry as a share of the sum, 0 to 1."""
    total = sum(flops)
    return [each / total if total else 1 / len(flops) for each in flops]


def has_product(equation: Equation) -> bool:
    """Whether an equation, or one inside its loops and branches, is a product."""
    if equation.primitive.name in PRODUCTS:
        return True
    return any(any(map(has_product, inner)) for inner in inner_equations(equation))


def nbytes(var: Var) -> int:
    """Returns the bytes of a value."""
    aval = var.aval
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4)
