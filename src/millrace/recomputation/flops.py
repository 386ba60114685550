"""How many FLOPs each layer call of a model takes, counted in its jaxpr.

XLA's own analysis counts the body of a loop once, so an LSTM over 100 steps would look as cheap as
over one; and it needs a lowering for each call. Products and convolutions are counted exactly,
everything else as one FLOP for each element that it makes.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from millrace._compat.jaxpr import Equation, Graph, inner_equations, scope

_CALL = re.compile(r"mr\.L(\d+)")


def flops_of_calls(graph: Graph, num_calls: int) -> list[float]:
    """Returns the FLOPs of each call.

    Args:
        graph: a trace of the model, forward or with its gradients, under `marked_calls`.
        num_calls: how many leaf calls there are.
    """
    flops = [0.0] * num_calls
    for equation in graph.equations:
        calls = _CALL.findall(scope(equation))
        if calls:
            flops[int(calls[-1])] += flops_of(equation)
    return flops


def flops_of(equation: Equation) -> float:
    """Returns the FLOPs of one equation, with those inside of it."""
    name, params = equation.primitive.name, equation.params
    shapes = [tuple(var.aval.shape) for var in equation.invars]
    made = sum(math.prod(var.aval.shape) for var in equation.outvars)
    if name == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return 2.0 * made * math.prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = params["dimension_numbers"].rhs_spec  # places of output, input, spatial axes
        return 2.0 * made * math.prod(shapes[1][axis] for axis in kernel[1:])
    bodies = list(inner_equations(equation))
    if not bodies:
        return float(made)
    costs = [sum(map(flops_of, body)) for body in bodies]
    if name == "cond":
        return max(costs)
    return sum(costs) * _turns(name, params)


def _turns(name: str, params: dict[str, Any]) -> int:
    return params["length"] if name == "scan" else 1  # a `while` does not say how often it turns


def shares(flops: Sequence[float]) -> list[float]:
    """Returns the share of each, of the sum of all."""
    total = sum(flops)
    return [each / total if total else 1 / len(flops) for each in flops]
