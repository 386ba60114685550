"""Idioms of programs with estimators: configurations are data, estimators raise their port."""

import pytest
from idioms import idiom

from millrace.errors import OptionError, UnsupportedNameError
from millrace.porting.findings.port import port

HEAD = """
import functools
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import ipu_estimator, ipu_pipeline_estimator, ipu_run_config
from tensorflow.python.ipu.ipu_run_config import IPURunConfig, RunConfig


def model_fn(features, labels, mode, params):
    pass


cfg = ipu.config.IPUConfig()
cfg.auto_select_ipus = 2
run = RunConfig(
    ipu_run_config=IPURunConfig(iterations_per_loop=100, num_replicas=2, ipu_options=cfg),
    model_dir="checkpoints",
    save_checkpoints_steps=50,
    tf_random_seed=3,
)
"""


def message_of(program, code):
    with pytest.raises(UnsupportedNameError) as caught:
        program(HEAD + code)
    return str(caught.value)


@idiom("Unsupported, with an error that says what to write", "`IPUEstimator(model_fn, config=...)`")
def test_an_estimator_says_the_port_of_its_arguments(program):
    message = message_of(
        program,
        "ipu.ipu_estimator.IPUEstimator(config=run, model_fn=model_fn, params={'rate': 0.1},"
        " train_batch_size=32, warm_start_from='old')",
    )
    head, *lines = message.split("\n")
    assert head == (
        "ipu.ipu_estimator.IPUEstimator is not in millrace. In its place: model.fit of a Keras "
        "model in a strategy's scope. `millrace port` lists all such lines of a program. With "
        "these arguments:"
    )
    assert [line.removeprefix("    ") for line in lines] == [
        "keras.utils.set_random_seed(3)",
        "cfg = the ipu_options of the IPURunConfig",
        "cfg.auto_select_ipus = 2",
        "cfg.configure_ipu_system()",
        "with ipu.ipu_strategy.IPUStrategy().scope():",
        "    model = keras.Model(...)  # the layers of model_fn, with rate=0.1",
        "    model.load_weights(...)  # in place of warm_start_from='old'",
        "    model.compile(optimizer, loss, steps_per_execution=100)",
        "dataset = dataset.batch(16, drop_remainder=True)  # of train",
        "model.fit(input_fn(), steps_per_epoch=..., callbacks=[keras.callbacks.ModelCheckpoint("
        '"checkpoints/{epoch}.weights.h5", save_weights_only=True, save_freq=50), '
        'keras.callbacks.TensorBoard("checkpoints")])  # those of train(), a multiple of 100, of '
        "each of the 2 replicas",
        "model.evaluate(input_fn(), steps=...)",
        "model.predict(input_fn(), steps=...)",
    ]


@idiom("Unsupported, with an error that says what to write", "`IPUPipelineEstimator`")
@idiom("Unsupported, with an error that says what to write", "`tf.estimator.Estimator`")
@pytest.mark.parametrize(
    ("code", "name", "parts"),
    [
        (
            "ipu_pipeline_estimator.IPUPipelineEstimator(config=RunConfig(IPURunConfig("
            "num_shards=4, prefetch_depth=3)), model_fn=functools.partial(model_fn, 1))",
            "ipu.ipu_pipeline_estimator.IPUPipelineEstimator",
            ("auto_select_ipus = 4", "set_pipeline_stage_assignment([", "prefetch_depth=3",
             "model_fn, with the arguments of the partial", "steps_per_execution=1"),
        ),
        ("tf.estimator.Estimator(model_fn, 'd')", "tf.estimator.Estimator", ('"d/{epoch}.we',)),
        ("tf.compat.v1.estimator.Estimator(model_fn)", "tf.estimator.Estimator", ("model.fit(",)),
        (
            "tf.estimator.train_and_evaluate(None, tf.estimator.TrainSpec(model_fn, max_steps=70),"
            " tf.estimator.EvalSpec(model_fn, steps=5))",
            "tf.estimator.train_and_evaluate",
            ("steps_per_epoch=70, validation_steps=5",),
        ),
        ("tf.estimator.DNNClassifier([3])", "tf.estimator.DNNClassifier", ("model.fit",)),
        (
            "class Mine(ipu_estimator.IPUEstimator):\n    def __init__(self): pass\n"
            "Mine().train(model_fn, steps=30)",
            "ipu.ipu_estimator.IPUEstimator.train",
            ("model.fit(input_fn(), steps_per_epoch=30)",),
        ),
    ],
)  # fmt: skip
def test_other_estimators(program, code, name, parts):
    message = message_of(program, code)
    assert message.startswith(f"{name} is not in millrace.")
    assert [part for part in parts if part not in message] == []
    if "Mine" not in code:
        assert name.replace("tf.estimator", "tf") in [
            finding.what.replace("compat.v1.", "").replace("tf.estimator", "tf")
            for finding in port(HEAD + code)
        ]


@idiom("Imports", "`RunConfig`, `IPURunConfig` and the specs of estimators, kept as data")
def test_configurations_and_specs_keep_their_arguments(program):
    code = """
    other = run.replace(save_checkpoints_steps=7)
    print(run.model_dir, run.save_checkpoints_steps, other.save_checkpoints_steps)
    print(other.ipu_run_config.iterations_per_loop, run.keep_checkpoint_max, run.master)
    spec = ipu_estimator.IPUEstimatorSpec(mode=tf.estimator.ModeKeys.TRAIN, loss=1.0)
    print(spec.mode, spec.loss, spec.train_op)
    stages = ipu_pipeline_estimator.IPUPipelineEstimatorSpec(
        "eval", computational_stages=[1, 2], pipeline_schedule=None, gradient_accumulation_count=8)
    print(stages.computational_stages, stages.gradient_accumulation_count)
    print(tf.estimator.EstimatorSpec("infer", predictions=3).predictions,
          isinstance(run, tf.estimator.RunConfig))
    """.replace("\n    ", "\n")
    assert program(HEAD + code).splitlines() == [
        "checkpoints 50 7",
        "100 5 None",
        "train 1.0 None",
        "[1, 2] 8",
        "3 True",
    ]
    with pytest.raises(OptionError, match=r"no argument 'save_every'. It has model_dir, tf_rand"):
        program(f"{HEAD}\nRunConfig(save_every=3)")
