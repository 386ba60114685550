"""The stages of pipelines on devices that are described, with every schedule."""

import keras
import pytest
from keras import layers
from target_programs import Target

from millrace.run.schedules.table import SCHEDULES

UNITS = 256
BATCH = (((32, UNITS), "float32"), ((32, UNITS), "float32"))
V_SHAPED = ("zb_v", "v_half", "v_min")
HALVES = (*V_SHAPED, "zero_bubble")  # whose backward is in two parts


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.quick if n == "zb_v" else ()) for n in SCHEDULES]
)
def test_all_stages(kind, devices, name):
    is_folded = name in (*V_SHAPED, "looped")
    stages = 2 * devices if is_folded else devices
    target = Target(f"{kind}:{devices}")
    with target.strategy.scope():
        model = keras.Sequential(
            [keras.Input((UNITS,)), *(layers.Dense(UNITS + 8 * k, "tanh") for k in range(stages))]
        )
    model.set_pipeline_stage_assignment(list(range(stages)))
    options = {"device_mapping": [k % devices for k in range(stages)]} if name == "looped" else {}
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=2 * stages, pipeline_schedule=name, **options
    )
    model.compile("adam", "mse", steps_per_execution=2 * stages)
    width = model.output_shape[-1]
    target.precompile(model, (BATCH[0], ((32, width), "float32")))
    found = {program.name for program in target.programs}
    passes = {"forward", "final", "zeros"}
    passes |= {"backward_weight"} if name in HALVES else {"backward"}
    expected = {f"train_{each} of stage {k}" for each in passes for k in range(stages)}
    if name in HALVES:  # the inputs of the first stage are data, and have no gradients
        expected |= {f"train_backward_input of stage {k}" for k in range(1, stages)}
    expected |= {
        f"{mode}_forward of stage {k}" for mode in ("test", "predict") for k in range(stages)
    }
    assert expected <= found
