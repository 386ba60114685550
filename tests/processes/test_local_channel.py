"""Both ends of a channel in one process: no call waits, so one thread can play both."""

import random
import socket

import numpy as np
import pytest

from millrace.errors import ProcessError
from millrace.processes import local_channel
from millrace.processes.local_channel import (
    LEAST_BYTES,
    SHARE,
    LocalChannel,
    MessageLayout,
    Outgoing,
    Ring,
    aligned,
)


@pytest.fixture
def ends():
    """A channel's ends: that of process 0, and that of process 1."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channels = [
        LocalChannel(end, Ring.reserve(LEAST_BYTES), other)
        for end, other in ((first, 1), (second, 0))
    ]
    yield channels
    for channel in channels:
        channel.close()


def message(channel, arrays):
    layout = MessageLayout(channel, [array.nbytes for array in arrays])
    return Outgoing(layout, [array.ctypes.data for array in arrays])


def parts(data, arrays):
    """The arrays of a message that has the shapes of `arrays`."""
    found, begin = [], 0
    for array in arrays:
        found.append(data[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape))
        begin += aligned(array.nbytes)
    return found


def values(generator, *sizes):
    return [generator.integers(0, 256, size, dtype=np.uint8) for size in sizes]


def exchange(sender, receiver, channel, arrays):
    """Sends a message, however often the ring is full, and returns what arrives."""
    outgoing = message(channel, arrays)
    for _ in range(100_000):
        is_sent = sender.send(outgoing)
        receiver.read()
        sender.read()  # what the receiver says is free
        if is_sent:
            return receiver.take(channel)
    raise AssertionError("not sent")


def test_messages_of_a_channel_arrive_in_order(ends):
    generator = np.random.default_rng(0)
    sent = [values(generator, 1, 63, 64, 65, 1000) for _ in range(20)]
    for arrays in sent:
        assert ends[0].send(message(7, arrays))
    ends[1].read()
    for arrays in sent:
        data = ends[1].take(7)
        assert data.__array_interface__["data"][0] % 64 == 0  # JAX takes over its memory
        for found, array in zip(parts(data, arrays), arrays, strict=True):
            assert np.array_equal(found, array)
    assert ends[1].take(7) is None


def test_channels_do_not_mix_and_both_ways_work_at_once(ends):
    generator = np.random.default_rng(0)
    there, back = values(generator, 500), values(generator, 700)
    assert ends[0].send(message(1, there))
    assert ends[1].send(message(1, back))
    assert ends[0].send(message(2, back))
    for end in ends:
        end.read()
    assert ends[1].take(3) is None
    assert np.array_equal(ends[1].take(2)[:700], back[0])
    assert np.array_equal(ends[1].take(1)[:500], there[0])
    assert np.array_equal(ends[0].take(1)[:700], back[0])


def test_reads_no_further_than_the_message_that_is_wanted(ends):
    generator = np.random.default_rng(0)
    for channel in (1, 2, 1):
        assert ends[0].send(message(channel, values(generator, 10)))
    ends[1].read(2)
    assert ends[1].take(2) is not None
    assert len(ends[1].arrived[1]) == 1


def test_a_full_ring_makes_the_sender_wait_and_loses_nothing(ends):
    generator = np.random.default_rng(0)
    arrays = values(generator, LEAST_BYTES // SHARE)
    sent = 0
    while ends[0].send(message(0, arrays)):
        sent += 1
    assert sent == SHARE  # as many as a ring must hold
    ends[1].read()
    ends[0].read()
    assert ends[0].send(message(0, arrays))
    ends[1].read()
    taken = [ends[1].take(0) for _ in range(sent + 1)]
    assert all(np.array_equal(data, arrays[0]) for data in taken)


def test_the_ring_grows_with_the_messages(ends):
    generator = np.random.default_rng(0)
    arrays = values(generator, 3 * LEAST_BYTES)
    assert ends[0].send(message(0, arrays))  # at once
    ends[1].read()
    assert np.array_equal(ends[1].take(0), arrays[0])
    small = values(generator, 10)
    assert ends[0].send(message(0, small))
    ends[1].read()
    assert np.array_equal(ends[1].take(0)[:10], small[0])


@pytest.mark.parametrize("sizes", [(5 * LEAST_BYTES + 3,), (LEAST_BYTES, 1, 2 * LEAST_BYTES + 1)])
def test_without_memory_for_a_larger_ring_messages_come_in_pieces(ends, monkeypatch, sizes):
    def no_memory(nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ring, "reserve", no_memory)
    generator = np.random.default_rng(0)
    for _ in range(2):
        arrays = values(generator, *sizes)
        data = exchange(*ends, 0, arrays)
        for found, array in zip(parts(data, arrays), arrays, strict=True):
            assert np.array_equal(found, array)


def test_any_sizes_in_any_order(ends, monkeypatch):
    monkeypatch.setattr(local_channel, "MOST_BYTES", 2 * LEAST_BYTES)
    choose, generator = random.Random(0), np.random.default_rng(0)
    for _ in range(150):
        way = choose.choice([(0, 1), (1, 0)])
        sizes = [choose.randrange(1, choose.choice([100, 10_000, 2_000_000])) for _ in range(3)]
        arrays = values(generator, *sizes)
        data = exchange(ends[way[0]], ends[way[1]], choose.randrange(3), arrays)
        for found, array in zip(parts(data, arrays), arrays, strict=True):
            assert np.array_equal(found, array)


def test_more_frames_than_a_socket_takes(ends):
    generator = np.random.default_rng(0)
    arrays = values(generator, 1)
    waiting = [message(0, arrays) for _ in range(5000)]
    while waiting:
        if ends[0].send(waiting[-1]):
            waiting.pop()
        else:
            ends[1].read()
            ends[0].read()
    ends[1].read()
    assert len(ends[1].arrived[0]) == 5000
    assert not ends[0].is_blocked  # or the sender would wait for room that it has, again and again


def test_an_end_that_is_gone_has_a_name(ends):
    ends[1].close()
    with pytest.raises(ProcessError, match=r"to process 1, on this machine, has ended.*output of"):
        ends[0].read()
    with pytest.raises(ProcessError, match="to process 1, on this machine, has ended"):
        ends[0].send(message(0, values(np.random.default_rng(0), 10)))


def test_what_was_sent_before_the_end_still_arrives(ends):
    arrays = values(np.random.default_rng(0), 10)
    assert ends[0].send(message(0, arrays))
    ends[0].close()
    ends[1].read(0)
    assert np.array_equal(ends[1].take(0)[:10], arrays[0])


def test_a_message_with_wrong_places_is_refused(ends):
    ring = ends[0]._ring
    frame = local_channel._Note(1, 1, 0, 64, 0, ring.nbytes, 64, 64)
    assert ends[0]._say(frame)
    with pytest.raises(ProcessError, match="sent a message with wrong places"):
        ends[1].read()
