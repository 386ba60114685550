import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace.base.devices import WHOLE, DeviceGroup
from millrace.base.options import Accumulation, Replication
from millrace.programs.plan import BatchSpec, Mode, Plan
from millrace.programs.replicas.reduce import GradientReduction
from millrace.programs.replicas.transform import OWN, on_replicas

REPLICAS = 4


def plan():
    return Plan(
        mode=Mode.TRAIN,
        batch=BatchSpec(None, ((2, 3),), (np.dtype("float32"),)),
        capacity=REPLICAS,
        accumulation=Accumulation(),
        step_logs=False,
        records=1,
        group=DeviceGroup(tuple(jax.devices("cpu")[:REPLICAS])),
        replication=Replication(),
    )


def test_gradients_are_added_and_of_new_scales_the_largest_serves_all_replicas():
    weight, scale = (keras.Variable(np.ones(shape, "f")) for shape in ((3,), ()))
    scale.overwrite_with_gradient = True  # as layers of float8 have it
    settings = plan()
    reduction = GradientReduction([weight, scale], settings)

    def agree(gradients, steps):
        return reduction.add_up(gradients, [steps])

    gradients = [jnp.arange(12.0).reshape(REPLICAS, 3), jnp.asarray([0.5, 4.0, 1.0, 2.0])]
    run = on_replicas(agree, settings.group, (OWN, OWN), (reduction.specs, WHOLE))
    found, (steps,) = run(gradients, jnp.asarray([2, 2, 2, 1]))
    np.testing.assert_array_equal(found[0], [18, 22, 26])
    assert found[1] == 4.0
    assert steps == 7
