"""Arrays whose memory is freed, unless others have it too."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from millrace._compat.jax_arrays import free_unless_shared, uncommitted

HERE, THERE = jax.devices()[:2]
BOTH = NamedSharding(Mesh(np.array([HERE, THERE]), ("replicas",)), PartitionSpec())


def made():
    return jax.device_put(jnp.arange(1000.0), HERE)


def test_what_has_moved_is_freed():
    old = made()
    new = jax.device_put(old, THERE)
    free_unless_shared([old], [new, made()])
    assert old.is_deleted()
    np.testing.assert_array_equal(new, np.arange(1000.0))


def test_an_array_twice_is_freed_once():
    old = made()
    free_unless_shared([old, old], [jax.device_put(old, THERE)])
    assert old.is_deleted()


def test_memory_of_others_stays():
    old = made()
    free_unless_shared([old], [uncommitted(old)])
    assert not old.is_deleted()


def test_a_copy_on_several_devices_keeps_its_values():
    old = made()
    new = jax.device_put(old, BOTH)
    free_unless_shared([old], [new])
    for shard in new.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.arange(1000.0))
