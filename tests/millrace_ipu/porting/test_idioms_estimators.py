"""Idioms of programs with estimators, which are not here."""

import pytest
from idioms import idiom

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
"""


@idiom("Unsupported, with an error that says what to write", "`IPUEstimator(model_fn, config=...)`")
@idiom("Unsupported, with an error that says what to write", "`IPUPipelineEstimator`")
@idiom("Unsupported, with an error that says what to write", "`tf.estimator.Estimator`")
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("ipu_estimator.IPUEstimator(model_fn, config=cfg)", "ipu.ipu_estimator.IPUEstimator"),
        (
            "ipu_pipeline_estimator.IPUPipelineEstimator(model_fn=model_fn, config=cfg)",
            "ipu.ipu_pipeline_estimator.IPUPipelineEstimator",
        ),
        ("tf.estimator.Estimator(model_fn, 'd')", "tf.estimator.Estimator"),
        ("tf.compat.v1.estimator.Estimator(model_fn)", "tf.estimator.Estimator"),
        ("tf.estimator.train_and_evaluate(cfg, 1, 2)", "tf.estimator.train_and_evaluate"),
        ("tf.estimator.DNNClassifier([3])", "tf.estimator.DNNClassifier"),
        ("tf.estimator.RunConfig(model_dir='d')", "tf.estimator.RunConfig"),
        ("tf.estimator.ModeKeys.TRAIN", "tf.estimator.ModeKeys.TRAIN"),
        ("class Mine(ipu_estimator.IPUEstimator): pass", "ipu.ipu_estimator.IPUEstimator"),
    ],
)
def test_estimators(program, code, name):
    with pytest.raises(UnsupportedNameError, match=rf"^{name} is not in .*: model.fit of a Keras"):
        program(HEAD + code)
    found = [finding.what.replace("compat.v1.", "") for finding in port(HEAD + code)]
    assert name in found


@pytest.mark.parametrize("code", ["IPURunConfig(num_replicas=2)", "RunConfig(model_dir='d')"])
def test_configurations_of_estimators(program, code):
    name = f"ipu.ipu_run_config.{code.partition('(')[0]}"
    with pytest.raises(UnsupportedNameError, match=rf"^{name} is not in .*: ipu.config.IPUConfig"):
        program(HEAD + code)
