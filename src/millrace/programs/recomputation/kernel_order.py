"""The order in which kernels run when nothing runs again.

    as traced   z1 z2 z3 | s1 s2 s3 sum, loss | ds3 ds2 ds1 | dz3 dz2 dz1
    here        z1 s1 z2 s2 sum z3 s3 sum, loss | ds3 dz3 ds2 dz2 ds1 dz1

As traced, the values z of all blocks are in memory until their skips s run at the end, and so are
all gradients ds: Keras runs layers by their distance to the outputs. A value that is made early, or
read late, takes memory for that long, or is computed again.

    forward    depth first from its results, so that each kernel runs just before the first one
               that needs it; what is much smaller than what it reads runs at once
    backward   a kernel waits for the first one that reads its results, unless that takes more
               memory; a kernel that reads a value of forward waits for the next one that does
"""

from collections.abc import Collection, Mapping

from millrace.programs.recomputation.kernel_work import KernelWork, Order

MUCH = 8  # times smaller, or larger


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
        # The sum so far is made before the next term, which follows from later blocks.
        pending += [(each, False) for each in sorted(needed, key=lambda k: -depth[k])]
    return _with_small_early(work, list(order), before=max(order, default=-1))


def _with_small_early(work: KernelWork, order: list[int], before: int) -> list[int]:
    """Returns the order with small results, and what only backward needs, made at once.

    Args:
        work: the kernels.
        order: those that the results of forward need.
        before: the last of these, as traced; what comes later is backward.
    """
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
    return MUCH * written <= max((work.nbytes[v] for v in work.inputs[kernel]), default=0)


def _with_late_backward(work: KernelWork, forward: list[int]) -> Order:
    """Adds the kernels of backward, some of them later than traced."""
    of_forward = set(forward)
    backward = [kernel for kernel in work.plain if kernel not in of_forward]
    # A kernel that waits takes the place of the one that it waits for, and runs before it.
    place = {kernel: (kernel, kernel) for kernel in backward}
    for kernel in reversed(backward):
        place[kernel] = (_waits_for(work, kernel, place), kernel)
    return (*forward, *sorted(backward, key=place.__getitem__))


def _waits_for(work: KernelWork, kernel: int, place: Mapping[int, tuple[int, int]]) -> int:
    """Returns the kernel of backward just before which another one runs; itself if it stays.

    Args:
        work: the kernels.
        kernel: one of backward.
        place: of each kernel of backward; those of later ones are final.
    """
    outputs, inputs = work.outputs[kernel], work.inputs[kernel]
    written = sum(work.nbytes[value] for value in outputs)
    largest = max((work.nbytes[value] for value in inputs), default=0)
    other_uses = {  # of each input that matters
        value: [place[r] for r in work.readers[value] if r != kernel and r in place]
        for value in inputs
        if value not in work.results and MUCH * work.nbytes[value] > largest
    }

    def bytes_kept(until: tuple[int, int]) -> int:
        """Returns the bytes of the inputs that only this kernel would still need then."""
        return sum(
            work.nbytes[value]
            for value, uses in other_uses.items()
            if max(uses, default=(-1, -1)) < until
        )

    first_reader = min((place[r] for v in outputs for r in work.readers[v]), default=None)
    if first_reader is not None and bytes_kept(first_reader) <= written:
        return first_reader[0]
    own = (kernel, kernel)
    next_use = min(
        (
            use
            for value, uses in other_uses.items()
            if work.maker[value] not in place and work.nbytes[value] > written
            for use in uses
            if use > own
        ),
        default=own,
    )
    until = next_use if first_reader is None else min(next_use, first_reader)
    return kernel if bytes_kept(until) else until[0]
