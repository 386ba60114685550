"""Idioms of programs with estimators: configurations are data, estimators are not here."""

import pytest
from idioms import idiom

from millrace.errors import OptionError
from millrace_ipu.errors import UnsupportedNameError
from millrace_ipu.porting.findings.port import port

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


@idiom("Unsupported, with an error that says what to write", "`IPUEstimator(model_fn, config=...)`")
@idiom("Unsupported, with an error that says what to write", "`IPUPipelineEstimator`")
@idiom("Unsupported, with an error that says what to write", "`tf.estimator.Estimator`")
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("ipu_estimator.IPUEstimator(model_fn, config=run)", "ipu.ipu_estimator.IPUEstimator"),
        (
            "ipu_pipeline_estimator.IPUPipelineEstimator(model_fn=model_fn, config=run)",
            "ipu.ipu_pipeline_estimator.IPUPipelineEstimator",
        ),
        ("tf.estimator.Estimator(model_fn, 'd')", "tf.estimator.Estimator"),
        ("tf.compat.v1.estimator.Estimator(model_fn)", "tf.estimator.Estimator"),
        ("tf.estimator.train_and_evaluate(run, 1, 2)", "tf.estimator.train_and_evaluate"),
        ("tf.estimator.DNNClassifier([3])", "tf.estimator.DNNClassifier"),
        ("class Mine(ipu_estimator.IPUEstimator): pass", "ipu.ipu_estimator.IPUEstimator"),
    ],
)
def test_estimators(program, code, name):
    with pytest.raises(UnsupportedNameError, match=rf"^{name} is not in .*: model.fit of a Keras"):
        program(HEAD + code)
    found = [finding.what.replace("compat.v1.", "") for finding in port(HEAD + code)]
    assert name in found


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
