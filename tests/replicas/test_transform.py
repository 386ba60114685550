from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from millrace.base.devices import REPLICA, WHOLE, DeviceGroup
from millrace.programs.replicas.transform import OWN, on_replicas, specs_on

REPLICAS = 2
XS = jnp.arange(4.0).reshape(REPLICAS, 1, 2)


def group(replicas=REPLICAS):
    return DeviceGroup(tuple(jax.devices("cpu")[:replicas]))


def test_each_replica_computes_with_its_own_values_and_those_of_all():
    def one(scale, x, rows):
        assert (x.shape, rows.shape) == ((1, 2), (3,))
        return {"own": scale * x, "sum": lax.psum(x, REPLICA)}, rows + lax.axis_index(REPLICA)

    divided = PartitionSpec(REPLICA)
    kinds = {"own": OWN, "sum": WHOLE}, divided
    run = on_replicas(one, group(), (WHOLE, OWN, divided), kinds)
    (found, rows) = run(jnp.float32(3), XS, jnp.zeros(6, int))
    np.testing.assert_array_equal(found["own"], 3 * XS)
    np.testing.assert_array_equal(found["sum"], [[0 + 2, 1 + 3]])
    np.testing.assert_array_equal(rows, [0, 0, 0, 1, 1, 1])


def test_other_axes_of_the_mesh_are_left_to_the_compiler():
    mesh = Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), (REPLICA, "model"))
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    weights = jax.device_put(jnp.arange(8.0).reshape(2, 4), columns)
    devices = SimpleNamespace(mesh=mesh, replicas=REPLICAS)
    run = jax.jit(on_replicas(lambda w, x: x @ w, devices, (WHOLE, OWN), OWN))
    found = run(weights, XS)
    np.testing.assert_array_equal(found, XS @ np.asarray(weights))
    assert found.sharding.spec == PartitionSpec(REPLICA, None, "model")


def test_specs_of_all_replicas_have_an_axis_where_each_has_its_own_value():
    spec, own = jax.ShapeDtypeStruct((3,), "float32"), group()
    whole, parts = specs_on(own, (WHOLE, OWN), (spec, [spec]))
    assert (whole.shape, whole.sharding) == ((3,), own.whole)
    assert [(part.shape, part.sharding) for part in parts] == [((REPLICAS, 3), own.split(0))]
    assert specs_on(own, OWN, parts) == parts  # they have layouts already
    assert specs_on(group(1), OWN, [spec]) == [spec]
