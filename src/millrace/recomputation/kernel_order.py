"""The order in which kernels run when nothing runs again.

    as traced   z1 z2 z3 | s1 s2 s3 sum, loss | ds3 ds2 ds1 | dz3 dz2 dz1     all z wait, all ds too
    here        z1 s1 z2 s2 sum z3 s3 sum, loss | ds3 dz3 ds2 dz2 ds1 dz1

What runs far from what it reads, or from what reads it, keeps that in memory or has it computed
again. Keras runs layers by their distance to the outputs, so that the skips of all blocks run at
the end; the gradients of these come first in backward.

    forward    depth first from its results: each kernel just before the first one that needs it,
               but what is much smaller than what it reads at once
    backward   a kernel waits for the first one that reads its results, if that takes no more
               memory; one that reads a value of forward waits for the next that does
"""

from collections.abc import Collection

from millrace.recomputation.kernel_work import KernelWork, Order

_MUCH = 8  # times smaller


def depth_first(work: KernelWork, results: Collection[int]) -> Order:
    """Returns an order of all kernels, each once.

    Args:
        work: kernels in an order in which they can run, all of forward before those of backward.
        results: values that forward computes.
    """
    if not all(work.repeatable):  # what prints does so in the order of the program
        return work.plain
    forward = _forward(work, results)
    return _with_late_backward(work, forward)


def _forward(work: KernelWork, results: Collection[int]) -> list[int]:
    """Returns the kernels of forward, and those before them that only backward needs."""
    maker = work.maker
    depth: list[int] = []  # of each kernel: the longest way to it
    for inputs in work.inputs:
        depth.append(1 + max((depth[maker[value]] for value in inputs), default=0))
    order: dict[int, None] = {}
    roots = sorted({maker[value] for value in results})
    pending = [(root, False) for root in reversed(roots)]
    while pending:
        kernel, has_inputs = pending.pop()
        if kernel in order:
            continue
        if has_inputs:
            order[kernel] = None
            continue
        pending.append((kernel, True))
        needed = dict.fromkeys(maker[value] for value in work.inputs[kernel])
        # Of a sum, what was added up so far comes before the next term.
        pending += [(each, False) for each in sorted(needed, key=lambda k: -depth[k])]
    return _with_small_early(work, list(order), before=max(order, default=-1))


def _with_small_early(work: KernelWork, order: list[int], before: int) -> list[int]:
    """Runs at once what is much smaller than what it reads, and what only backward needs."""
    position = {kernel: place for place, kernel in enumerate(order)}
    after: dict[int, list[int]] = {}  # of each place: kernels that run right after it
    moved: set[int] = set()
    for kernel in range(before):
        makers = [work.maker[value] for value in work.inputs[kernel]]
        is_early = kernel not in position or _is_small(work, kernel)
        if is_early and makers and all(maker in position for maker in makers):
            position[kernel] = max(map(position.__getitem__, makers))
            after.setdefault(position[kernel], []).append(kernel)
            moved.add(kernel)
    found: list[int] = []
    for place, kernel in enumerate(order):
        found += [] if kernel in moved else [kernel]
        found += after.get(place, ())
    return found


def _is_small(work: KernelWork, kernel: int) -> bool:
    written = sum(work.nbytes[value] for value in work.outputs[kernel])
    return _MUCH * written <= max((work.nbytes[v] for v in work.inputs[kernel]), default=0)


def _with_late_backward(work: KernelWork, forward: list[int]) -> Order:
    """Adds the kernels of backward, some of them later."""
    of_forward = set(forward)
    backward = [kernel for kernel in work.plain if kernel not in of_forward]
    place = {kernel: (kernel, kernel) for kernel in backward}
    for kernel in reversed(backward):
        place[kernel] = (_latest(work, kernel, place), kernel)
    return (*forward, *sorted(backward, key=place.__getitem__))


def _latest(work: KernelWork, kernel: int, place: dict[int, tuple[int, int]]) -> int:
    """Returns the kernel before which one runs at the latest, or itself."""
    outputs, inputs = work.outputs[kernel], work.inputs[kernel]
    written = sum(work.nbytes[value] for value in outputs)
    first = min((place[r] for value in outputs for r in work.readers[value]), default=None)
    small = max((work.nbytes[value] for value in inputs), default=0) // _MUCH
    others = {
        value: [place[r] for r in work.readers[value] if r != kernel and r in place]
        for value in inputs
        if value not in work.results and work.nbytes[value] > small
    }

    def longer(until: tuple[int, int]) -> int:
        """Returns the bytes of what would stay in memory for longer."""
        return sum(work.nbytes[v] for v, uses in others.items() if max(uses, default=(-1,)) < until)

    if first is not None and longer(first) <= written:
        return first[0]
    of_forward = [v for v in others if work.maker[v] not in place and work.nbytes[v] > written]
    uses = (use for value in of_forward for use in others[value] if use > (kernel, kernel))
    until = min(uses, default=(kernel, kernel))
    if first is not None:
        until = min(until, first)
    return kernel if longer(until) else until[0]
