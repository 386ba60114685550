import os

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from key_cases import OBJECTS, batch, key, plan_for, small_model

from millrace._compat.jax_tracing import jax_options
from millrace.base.devices import DeviceGroup
from millrace.base.options import Accumulation
from millrace.base.records.compilation import Aspect
from millrace.compilation.explain.key import key_of_call, versions
from millrace.compilation.explain.model_keys import ModelKeys
from millrace.programs.plan import BatchSpec, Mode

pytestmark = pytest.mark.quick


def named(found, aspect):
    return {field.name: field.value for field in found.fields if field.aspect is aspect}


def test_a_key_has_every_aspect():
    found = key(small_model(loss=lambda y, p: keras.ops.mean(y - p)))
    assert {field.aspect for field in found.fields} == set(Aspect)
    assert found.program == "train_run"
    assert found.is_complete
    assert len({(f.aspect, f.name) for f in found.fields}) == len(found.fields)


def test_arguments_have_the_names_that_fit_gives_them():
    x, y = batch()
    found = named(key(given=({"image": x, "age": [y]}, y, y[:, 0])), Aspect.ARGUMENT)
    assert found == {
        "argument x: structure": "{'age': [*], 'image': *}",
        "argument y: structure": "*",
        "argument sample_weight: structure": "*",
        "argument x['age'][0]: shape": "(32, 2)",
        "argument x['age'][0]: dtype": "float32",
        "argument x['image']: shape": "(32, 3)",
        "argument x['image']: dtype": "float32",
        "argument y: shape": "(32, 2)",
        "argument y: dtype": "float32",
        "argument sample_weight: shape": "(32,)",
        "argument sample_weight: dtype": "float32",
    }


@pytest.mark.parametrize("given", [np.ones((4, 3)), (np.ones((4, 3)),)])
def test_the_only_argument_is_x(given):
    found = named(key(given=given, mode=Mode.PREDICT), Aspect.ARGUMENT)
    assert found["argument x: shape"] == "(4, 3)"
    assert found["argument x: structure"] == "*"


def test_a_program_without_a_batch_has_no_arguments():
    assert named(key(batch=BatchSpec(None, (), ())), Aspect.ARGUMENT) == {}


def test_options_have_the_names_that_the_user_sets():
    found = named(key(accumulation=Accumulation(steps=8, batch_serialization=2)), Aspect.OPTION)
    assert found["gradient_accumulation_steps_per_replica"] == "4"
    assert found["batch_serialization_iterations"] == "2"
    assert found["keras.config.floatx()"] == "float32"
    assert found["dtype"] == "None"


def test_what_is_given_is_part_of_the_key():
    model, plan = small_model(), plan_for(batch())
    found = ModelKeys(model, OBJECTS).of(
        plan,
        "run",
        unroll=4,
        compiler_options={"xla_b": 1, "xla_a": True},
        options={"pipeline_schedule": "gpipe"},
    )
    assert named(found, Aspect.OPTION)["steps in unrolled code"] == "4"
    assert named(found, Aspect.OPTION)["pipeline_schedule"] == "gpipe"
    assert named(found, Aspect.FLAG)["compiler options"] == "xla_a=True xla_b=1"
    assert named(found, Aspect.IDENTITY) == dict(OBJECTS)
    assert named(found, Aspect.VERSION) == versions()


def test_identity_is_no_part_of_the_digest():
    assert key().digest == key(identity=()).digest != key(capacity=5).digest


def test_an_accumulator_dtype_by_function_is_its_code():
    def choose(variable):
        return "float32" if variable.dtype == "bfloat16" else None

    found = key(accumulation=Accumulation(dtype=choose))
    assert named(found, Aspect.OPTION)["dtype"] == "choose()"
    assert "instructions of choose()" in named(found, Aspect.CODE)


def test_devices_are_those_of_the_plan():
    found = named(key(group=DeviceGroup(tuple(jax.devices()[2:4]))), Aspect.DEVICE)
    assert found == {
        "platform": "cpu",
        "kind of device": "cpu",
        "number of devices": "2",
        "devices": "2, 3",
    }


def test_flags_have_no_order(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--b=1  --a=2")
    one = key()
    monkeypatch.setenv("XLA_FLAGS", "--a=2 --b=1")
    assert key().digest == one.digest
    assert named(one, Aspect.FLAG)["XLA_FLAGS"] == "--a=2 --b=1"


def test_options_of_jax_are_plain_text():
    options = jax_options()
    assert options["jax_enable_x64"] == "False"
    assert options["jax_debug_nans"] == "False"
    with jax.default_matmul_precision("highest"), jax.debug_infs(True):
        changed = {k: v for k, v in jax_options().items() if options[k] != v}
    assert changed == {"jax_default_matmul_precision": "highest", "jax_debug_infs": "True"}
    assert not [value for value in options.values() if " at 0x" in value]


@pytest.mark.parametrize("mode", Mode)
def test_a_key_of_each_mode_has_the_state_of_that_mode(mode):
    roles = {value.split()[-1] for value in named(key(mode=mode), Aspect.STATE).values()}
    expected = {"trainable", "non-trainable", "metric", "optimizer"}
    expected -= {Mode.TEST: {"optimizer"}, Mode.PREDICT: {"optimizer", "metric"}}.get(mode, set())
    assert roles == expected


def test_the_key_of_a_call_reads_like_the_call():
    def step(x, *rest, scale, name="a"):
        return x

    given = {"scale": 2.0, "name": "b"}
    arrays = ({"a": np.ones(3)}, jnp.ones(2, "bfloat16"))
    found = key_of_call("step", jax.jit(step), arrays, given, static=("name",))
    arguments = named(found, Aspect.ARGUMENT)
    assert arguments["arguments passed by keyword"] == "name, scale"
    assert arguments["argument x['a']: dtype"] == "float32"  # as JAX takes a float64
    assert arguments["argument rest[0]: dtype"] == "bfloat16"
    assert arguments["argument scale: weak type"] == "yes, of a Python number"
    assert arguments["static argument name"] == "'b'"
    assert named(found, Aspect.CODE)["default of `name` in step()"] == "'a'"
    assert found.is_complete


def test_a_call_is_described_after_its_arrays_were_given_away():
    array, function = jnp.ones(3), lambda x: x
    before = key_of_call("f", function, (array,), {})
    array.delete()
    assert key_of_call("f", function, (array,), {}) == before


def test_a_static_argument_that_hides_its_state_makes_a_key_incomplete():
    found = key_of_call("f", lambda x, y: x, (1, object()), {}, static=(1,))
    assert not found.is_complete


def test_nothing_that_one_process_alone_knows_is_in_a_key():
    found = key(small_model(loss=lambda y, p: keras.ops.mean(y - p)), identity=())
    text = " ".join(f"{f.name} {f.value} {f.where}" for f in found.fields)
    assert "0x" not in text
    assert os.getcwd() not in text
