"""`tf.estimator`: its configurations and specs are data; estimators raise their port to `fit`.

RunConfig, EstimatorSpec, TrainSpec, EvalSpec, ModeKeys     keep their arguments
Estimator(model_fn, config=...), train_and_evaluate(...)    raise        estimator_port.py
"""

from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from millrace.errors import OptionError
from millrace.tensorflow.dispatch import real_name
from millrace.tensorflow.estimator_port import lines_of_estimator
from millrace.tensorflow.replacements import FIT
from millrace.tensorflow.unsupported import Replaced, refuse


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


class EstimatorBase(Replaced):
    """Raises the port of its arguments.

    Raises:
        UnsupportedNameError: always.
    """

    _shown = "tf.estimator.Estimator"
    _instead = FIT
    _has_stages = False

    def __init__(
        self,
        model_fn: Callable[..., object] | None = None,
        model_dir: str | None = None,
        config: Any = None,
        params: Mapping[str, object] | None = None,
        warm_start_from: object = None,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
    ):
        lines = lines_of_estimator(
            model_fn,
            config,
            model_dir=model_dir,
            params=params,
            warm_start_from=warm_start_from,
            batch_sizes={
                "train": train_batch_size,
                "eval": eval_batch_size,
                "predict": predict_batch_size,
            },
            has_stages=self._has_stages,
        )
        refuse(self._shown, self._instead, lines)

    def train(
        self,
        input_fn: object,
        hooks: object = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: object = None,
    ) -> NoReturn:
        """Raises the call of `fit`, with `steps`."""
        refuse(f"{self._shown}.train", self._instead, [_loop("fit", max_steps or steps)])

    def evaluate(self, input_fn: object, steps: int | None = None, *_: object, **__: object) -> Any:
        """Raises the call of `evaluate`, with `steps`."""
        refuse(f"{self._shown}.evaluate", self._instead, [_loop("evaluate", steps)])

    def predict(self, input_fn: object, *_: object, **__: object) -> NoReturn:
        """Raises the call of `predict`."""
        refuse(f"{self._shown}.predict", self._instead, [_loop("predict", None)])


class Estimator(EstimatorBase):
    """Raises the port of its arguments to `model.fit`."""


def train_and_evaluate(estimator: object, train_spec: TrainSpec, eval_spec: EvalSpec) -> NoReturn:
    """Raises the call of `fit`, with the data and the steps of both specs.

    Raises:
        UnsupportedNameError: always.
    """
    steps, evaluated = train_spec.max_steps, eval_spec.steps
    numbers = "" if steps is None else f", steps_per_epoch={steps}"
    numbers += "" if evaluated is None else f", validation_steps={evaluated}"
    line = f"model.fit(train_input_fn(), validation_data=eval_input_fn(){numbers})"
    refuse("tf.estimator.train_and_evaluate", FIT, [line])


train_and_evaluate.only_raises = True  # type: ignore[attr-defined]


def _loop(name: str, steps: int | None) -> str:
    argument = "steps_per_epoch" if name == "fit" else "steps"
    return f"model.{name}(input_fn(){'' if steps is None else f', {argument}={steps}'})"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return real_name(f"estimator.{name}")
