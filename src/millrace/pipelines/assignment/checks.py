"""What makes stages a pipeline: numbers without a gap, and values that never flow backwards."""

import itertools
from collections.abc import Iterable, Sequence

from millrace.errors import OptionError
from millrace.pipelines.assignment.calls import LayerCall, leaf_edges, leaves


def check_no_gap(stages: Iterable[int]) -> None:
    """Checks that the stages are 0 to n - 1.

    Raises:
        OptionError: if one is negative or missing, or there are none.
    """
    found = sorted(set(stages))
    if not found:
        raise OptionError("The model makes no layer calls to put into stages. Add layers first.")
    missing = sorted(set(range(found[-1] + 1)) - set(found))
    if found[0] < 0 or missing:
        raise OptionError(
            f"Pipeline stages are numbered from 0 on without a gap. Found: {found}; missing: "
            f"{missing}. Number the stages from 0 to {len(found) - 1}."
        )


def check_flow(calls: Iterable[LayerCall], stages: Sequence[int]) -> None:
    """Checks that no leaf takes a value of a later stage.

    Raises:
        OptionError: naming the first that does.
    """
    flat = leaves(calls)
    for number, producers in enumerate(leaf_edges(calls)):
        for producer in producers:
            if stages[producer] > stages[number]:
                raise OptionError(
                    f"The call of layer '{flat[number].name}' (node index "
                    f"{flat[number].node_index}) is in stage {stages[number]} and takes a value of "
                    f"'{flat[producer].label}', which is in the later stage {stages[producer]}. "
                    f"Move it to stage {stages[producer]} or later."
                )


def check_sequence(calls: Sequence[LayerCall], stages: Sequence[Sequence[int]]) -> None:
    """Checks that the layers of a Sequential begin at stage 0 and go up in steps of one.

    Args:
        calls: one per layer.
        stages: of each call, those of its leaves.

    Raises:
        OptionError: naming the layer that does not, and the one before it.
    """
    ranges = [(call.label, min(some), max(some)) for call, some in zip(calls, stages, strict=True)]
    for name, first, _ in ranges[:1]:
        if first != 0:
            raise OptionError(
                f"The first layer, '{name}', is in stage {first}. The first stage is 0: set that."
            )
    for (before, _, last), (after, first, _) in itertools.pairwise(ranges):
        if first not in (last, last + 1):
            raise OptionError(
                f"Layer '{after}' is in stage {first}, after '{before}' in stage {last}. Set "
                f"{last}, the same stage, or {last + 1}, the next."
            )
