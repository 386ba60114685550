"""Parts of calls on their way to those who wait for them; what they carry is made by hand."""

import jax.numpy as jnp

from millrace.base.records.tensors import Tensor
from millrace.programs.taps.delivery import Delivery
from millrace.programs.taps.entries import CallResult, Taps
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.taps import Tapped
from millrace.programs.taps.tensors import Rows

LOSS, KERNEL = Tensor("loss", "loss"), Tensor("gradient", "kernel")


class Kept:
    def __init__(self):
        self.blocks = []

    def statistics(self, block):
        self.blocks.append(block)


def test_a_part_that_begins_and_ends_within_a_round_has_the_rows_of_its_steps():
    queue, listener, delivery = OutfeedQueue(), Kept(), Delivery()
    delivery.listeners.append(listener)
    # Two replicas, [rounds, replicas, tensors, statistics]: step 1 is the first that counts.
    rows = jnp.arange(8.0).reshape(4, 2, 1, 1)
    taps = Tapped((Rows((LOSS,)), queue, Rows((KERNEL,))), (rows, rows[:, 0, 0, 0], -rows))
    delivery.deliver([CallResult(None, 4, 0, 1, Taps(steps=taps))], replicas=2)
    delivery.close()
    (block,) = listener.blocks
    assert block.of_steps.tensors == (LOSS, KERNEL)
    assert block.of_steps.values[..., 0].tolist() == [[1, -1], [2, -2], [3, -3], [4, -4]]
    assert queue.dequeue().tolist() == [0, 2, 4]  # rounds that the part has a step in
