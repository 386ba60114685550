import jax
import numpy as np
import pytest

from millrace.base.devices import DeviceGroup
from millrace.errors import DataError
from millrace.programs.feeds.block import (
    ALIGNMENT,
    Block,
    Destination,
    batch_spec,
    empty_block,
    part_of_block,
)
from millrace.programs.feeds.blocks import BlockShape, ResidentArrays, stacked_blocks

pytestmark = pytest.mark.quick

CPU = Destination(DeviceGroup((jax.devices("cpu")[0],)))
TWO_REPLICAS = Destination(DeviceGroup(tuple(jax.devices("cpu")[:2])))


def shape(max_bytes=2**20, multiples=(1, 1), capacities=None, together=1, replicas=1):
    return BlockShape(
        max_bytes, multiples, {} if capacities is None else capacities, together, replicas
    )


def batches(rows):
    """Batches of these numbers of rows; each value says which batch it belongs to."""
    return [(np.full((n, 2), i, np.float32), np.full(n, i, np.int32)) for i, n in enumerate(rows)]


def contents(blocks):
    """For each block: its batches' numbers, and its capacity."""
    return [
        ([int(np.asarray(b.batches[1])[i, 0]) for i in range(b.steps)], b.capacity) for b in blocks
    ]


def stack(rows, sizes, **bounds):
    return contents(stacked_blocks(iter(batches(rows)), sizes, shape(**bounds), CPU))


def test_a_block_is_an_execution():
    assert stack([4] * 10, [4, 4, 2]) == [([0, 1, 2, 3], 4), ([4, 5, 6, 7], 4), ([8, 9], 4)]


def test_blocks_end_where_shapes_change_and_nothing_is_dropped():
    found = stack([4, 4, 3, 4, 4], [5])
    assert [steps for steps, _ in found] == [[0, 1], [2], [3, 4]]


def test_a_block_of_replicas_that_begins_within_an_update_ends_with_it():
    source = iter(batches([4] * 2 + [3] * 12))
    bounds = shape(multiples=(14, 6), replicas=2)
    found = list(stacked_blocks(source, [14], bounds, TWO_REPLICAS))
    assert [(block.spec.rows, block.steps) for block in found] == [(4, 2), (3, 4), (3, 8)]


def test_replicas_without_a_batch_in_a_round_compute_with_zeros(monkeypatch):
    def used_memory(spec, lead):  # fresh memory may hold anything: NaN, or labels of no class
        leaves = empty_block(spec, lead)
        for leaf in leaves:
            leaf.fill(7)
        return leaves

    monkeypatch.setattr("millrace.programs.feeds.blocks.empty_block", used_memory)
    source = iter(batches([4, 3, 3, 3]))
    bounds = shape(multiples=(4, 2), replicas=2)
    found = list(stacked_blocks(source, [4], bounds, TWO_REPLICAS))
    first_rounds = [np.asarray(block.batches[1])[0, :, 0].tolist() for block in found]
    assert [(block.first, block.steps) for block in found] == [(0, 1), (1, 1), (0, 2)]
    assert first_rounds == [[0, 0], [0, 1], [2, 3]]


def test_data_that_ends_early():
    assert [steps for steps, _ in stack([4] * 5, [4, 4, 4])] == [[0, 1, 2, 3], [4]]
    assert stack([], [4]) == []


def test_no_batch_is_drawn_beyond_the_sizes():
    source = iter(batches([4] * 10))
    list(stacked_blocks(source, [2, 3], shape(), CPU))
    assert len(list(source)) == 5


def test_a_block_is_bounded_in_bytes_and_holds_whole_updates():
    nbytes = batch_spec(batches([4])[0]).nbytes
    found = stack([4] * 12, [12], max_bytes=7 * nbytes, multiples=(12, 3))
    assert found == [([0, 1, 2, 3, 4, 5], 6), ([6, 7, 8, 9, 10, 11], 6)]
    assert [c for _, c in stack([4] * 3, [3], max_bytes=1)] == [1, 1, 1]


def test_a_shorter_execution_uses_the_capacity_that_has_an_executable():
    capacities = {}
    assert [c for _, c in stack([4] * 8, [8], capacities=capacities)] == [8]
    assert [c for _, c in stack([4] * 3, [3], capacities=capacities)] == [8]


def test_a_buffer_that_the_data_set_fills_again_is_copied():
    buffer = np.zeros((4, 1), np.float32)

    def refill():
        for i in range(6):
            buffer[:] = i
            yield (buffer,)

    blocks = list(stacked_blocks(refill(), [3, 3], shape(), CPU))
    values = [np.asarray(b.batches[0])[: b.steps, 0, 0].tolist() for b in blocks]
    assert values == [[0, 1, 2], [3, 4, 5]]


def test_64_bits_become_32_as_in_jax():
    spec = batch_spec((np.zeros((2, 3)), np.zeros(2, np.int64), np.zeros(2, bool), None))
    assert [d.name for d in spec.dtypes] == ["float32", "int32", "bool"]
    assert str(spec) == "float32[2,3], int32[2], bool[2]"
    assert spec.rows == 2
    assert spec.nbytes == 2 * 3 * 4 + 2 * 4 + 2


def test_leaves_without_a_fixed_shape_are_refused():
    ragged = np.array([[1, 2], [3]], dtype=object)
    with pytest.raises(DataError, match=r"Leaf 1 of a batch has dtype object.*pad_sequences"):
        batch_spec((np.zeros(2), ragged))
    with pytest.raises(DataError, match="dtype <U1"):
        batch_spec((np.array(["a"]),))


@pytest.mark.parametrize("steps", [1, 3, 1000])
def test_host_blocks_are_aligned_so_that_jax_does_not_copy_them(steps):
    spec = batch_spec((np.zeros((5, 3), np.float32), np.zeros(5, np.int8)))
    leaves = empty_block(spec, (steps,))
    assert [leaf.shape for leaf in leaves] == [(steps, 5, 3), (steps, 5)]
    assert all(leaf.ctypes.data % ALIGNMENT == 0 for leaf in leaves)


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("rows", [12, 14, 3])
def test_rows_are_gathered_in_order(on_host, rows):
    x = np.arange(rows * 2, dtype=np.float64).reshape(rows, 2)
    y = np.arange(rows)
    resident = ResidentArrays((x, y), CPU)
    if not on_host:  # the path of accelerators, on the device that is here
        resident._on_host = False
        resident._leaves = CPU.put(resident._leaves)
    order = np.random.default_rng(0).permutation(rows).astype(np.int32)
    nbytes = batch_spec((x[:4], y[:4])).nbytes
    blocks = list(resident.blocks(order, 4, shape(max_bytes=2 * nbytes)))
    got_x, got_y = [], []
    for block in blocks:
        got_x.append(np.asarray(block.batches[0])[: block.steps].reshape(-1, 2))
        got_y.append(np.asarray(block.batches[1])[: block.steps].ravel())
    np.testing.assert_array_equal(np.concatenate(got_x), x[order].astype(np.float32))
    np.testing.assert_array_equal(np.concatenate(got_y), y[order])
    assert blocks[-1].spec.rows == (rows % 4 or 4)


def test_resident_rows_do_not_change_with_the_users_array_after_they_were_gathered():
    x = np.zeros((64, 16), np.float32)
    resident = ResidentArrays((x,), CPU)
    (block,) = resident.blocks(np.arange(64, dtype=np.int32), 64, shape())
    x[:] = 1
    assert float(np.asarray(block.batches[0]).max()) == 0


def test_short_executions_share_a_block_unless_it_is_awaited():
    def stack_awaited(*answers):
        answers = iter(answers)
        source = stacked_blocks(
            iter(batches([4] * 8)), [2] * 4, shape(together=8), CPU, lambda: next(answers)
        )
        return [steps for steps, _ in contents(source)]

    assert stack_awaited(True, True, True, True) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert stack_awaited(True, False, False, True) == [[0, 1], [2, 3, 4, 5, 6, 7]]
    assert stack_awaited(False, False, False, False) == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_executions_together_are_bounded():
    found = list(
        stacked_blocks(iter(batches([4] * 99)), [1] * 99, shape(together=32), CPU, lambda: False)
    )
    assert [block.steps for block in found] == [32] * 3 + [3]


def test_an_epoch_begins_with_small_blocks_of_whole_executions():
    spec = batch_spec((np.zeros((32, 64), np.float32),))  # 8 KiB
    wide = 2**25

    def begin(execution, update, steps=10_000):
        return [shape(wide, (execution, update)).steps_of(index, spec, steps) for index in range(4)]

    assert begin(1, 1) == [16, 64, 256, 1024]
    assert begin(10, 5) == [10, 60, 250, 1020]
    assert begin(50, 5) == [50, 50, 250, 1000]
    assert begin(5000, 5) == [15, 60, 255, 1020]
    assert begin(1, 1, steps=40) == [16, 40, 40, 40]


@pytest.mark.parametrize("put", [np.asarray, jax.numpy.asarray])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_part_of_a_block(put, replicas):
    steps = np.arange(8)
    batches = put(steps.reshape(8 // replicas, replicas) if replicas > 1 else steps)
    part = part_of_block(Block([batches], batch_spec([steps[:1]]), 8, 8), 4, 2)
    assert np.asarray(part.batches[0]).ravel().tolist() == [4, 5]
    assert (part.capacity, part.steps) == (2, 2)
