"""`tf.estimator`: its configurations and specs are data; estimators are not here.

RunConfig, EstimatorSpec, TrainSpec, EvalSpec, ModeKeys     keep their arguments
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from millrace.errors import OptionError
from millrace_ipu.tensorflow.dispatch import real_name


class ModeKeys:
    """What a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


EstimatorSpec = namedtuple(  # any values
    "EstimatorSpec",
    "mode predictions loss train_op eval_metric_ops export_outputs training_chief_hooks "
    "training_hooks scaffold evaluation_hooks prediction_hooks",
    defaults=(None,) * 10,
)
TrainSpec = namedtuple(
    "TrainSpec", "input_fn max_steps hooks saving_listeners", defaults=(None, None, None)
)
EvalSpec = namedtuple(
    "EvalSpec",
    "input_fn steps name hooks exporters start_delay_secs throttle_secs",
    defaults=(100, None, None, None, 120, 600),
)


class RunConfig:
    """Keeps its arguments, by the names that TensorFlow gives them.

    Raises:
        OptionError: for another name.
    """

    _DEFAULTS: Mapping[str, object] = {
        "model_dir": None,
        "tf_random_seed": None,
        "save_summary_steps": 100,
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": None,
        "session_config": None,
        "keep_checkpoint_max": 5,
        "keep_checkpoint_every_n_hours": 10000,
        "log_step_count_steps": 100,
        "train_distribute": None,
        "device_fn": None,
        "protocol": None,
        "eval_distribute": None,
        "experimental_distribute": None,
        "experimental_max_worker_delay_secs": None,
        "session_creation_timeout_secs": 7200,
        "checkpoint_save_graph_def": True,
    }

    def __init__(self, model_dir: str | None = None, **options: object):
        unknown = [name for name in options if name not in self._DEFAULTS]
        if unknown:
            raise OptionError(
                f"RunConfig has no argument {unknown[0]!r}. It has {', '.join(self._DEFAULTS)}."
            )
        self._options = {**self._DEFAULTS, "model_dir": model_dir, **options}

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("_options", {})
        if name not in options:
            raise AttributeError(f"RunConfig has no attribute {name!r}")
        return options[name]

    def replace(self, **options: object) -> Any:
        """Returns a copy with other values for some arguments."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._options = {**self._options, **options}
        return copy


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return real_name(f"estimator.{name}")
