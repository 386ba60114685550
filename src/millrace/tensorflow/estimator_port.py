"""The port of an estimator's very arguments to `model.fit`.

RunConfig(model_dir="d", save_checkpoints_steps=50)    ModelCheckpoint("d/...", save_freq=50)
IPURunConfig(iterations_per_loop=100)                  compile(steps_per_execution=100)
IPURunConfig(num_replicas=2)                           cfg.auto_select_ipus = 2
train(input_fn, steps=1000)                            fit(input_fn(), steps_per_epoch=1000)
"""

import functools
from collections.abc import Mapping
from typing import Any


def lines_of_estimator(
    model_fn: object,
    config: Any,
    *,
    model_dir: str | None = None,
    params: Mapping[str, object] | None = None,
    warm_start_from: object = None,
    batch_sizes: Mapping[str, int | None],
    has_stages: bool = False,
) -> list[str]:
    """Returns lines that train, evaluate and predict with a model in place of an estimator.

    Args:
        model_fn: the function that described the model.
        config: a `RunConfig`, or an object with some of its attributes; None for none.
        model_dir: directory of checkpoints; None takes that of the configuration.
        params: of the model.
        warm_start_from: a checkpoint.
        batch_sizes: rows of a batch of all replicas in `train`, `eval` and `predict`, as far as
            they were given.
        has_stages: whether the model was a pipeline.
    """
    ipu = getattr(config, "ipu_run_config", None)
    replicas, shards = getattr(ipu, "num_replicas", 1), getattr(ipu, "num_shards", 1)
    directory = model_dir or getattr(config, "model_dir", None)
    seed = getattr(config, "tf_random_seed", None)
    lines = []
    if seed is not None:
        lines.append(f"keras.utils.set_random_seed({seed})")
    if ipu is not None:
        has_options = getattr(ipu, "ipu_options", None) is not None
        made = "the ipu_options of the IPURunConfig" if has_options else "ipu.config.IPUConfig()"
        lines += [f"cfg = {made}", f"cfg.auto_select_ipus = {replicas * shards}"]
        lines += ["cfg.configure_ipu_system()"]
    ordinal = getattr(ipu, "ordinal", 0)
    device = f'"/device:IPU:{ordinal}"' if ordinal else ""
    lines += [f"with ipu.ipu_strategy.IPUStrategy({device}).scope():"]
    lines += [f"    {line}" for line in _model(model_fn, params, warm_start_from, directory)]
    if has_stages or shards > 1:
        lines.append("    model.set_pipeline_stage_assignment([0, 0, 1, 1])  # of each layer")
    depth = getattr(ipu, "prefetch_depth", None)
    if depth is not None:
        lines.append(f"    model.set_infeed_queue_options(prefetch_depth={depth})")
    steps = getattr(ipu, "iterations_per_loop", 1)
    lines.append(f"    model.compile(optimizer, loss, steps_per_execution={steps})")
    for mode, rows in batch_sizes.items():
        if rows is not None:
            size = rows // replicas
            lines.append(f"dataset = dataset.batch({size}, drop_remainder=True)  # of {mode}")
    return [*lines, _fit(directory, config, replicas, steps), *_INFERENCE]


_INFERENCE = (
    "model.evaluate(input_fn(), steps=...)",
    "model.predict(input_fn(), steps=...)",
)


def _model(
    model_fn: object, params: Mapping[str, object] | None, start: object, directory: str | None
) -> list[str]:
    made = f"model = keras.Model(...)  # the layers of {_name(model_fn)}"
    if params:
        made += f", with {', '.join(f'{name}={value!r}' for name, value in params.items())}"
    lines = [made]
    if start is not None:
        lines.append(f"model.load_weights(...)  # in place of warm_start_from={start!r}")
    elif directory is not None:
        lines.append(f"# model.load_weights(...) goes on from a checkpoint in {directory!r}")
    return lines


def _fit(directory: str | None, config: object, replicas: int, steps: int) -> str:
    callbacks = []
    if directory is not None:
        every = getattr(config, "save_checkpoints_steps", None)
        frequency = "" if every is None else f", save_freq={every}"
        file = f"{directory}/{{epoch}}.weights.h5"
        callbacks.append(
            f'keras.callbacks.ModelCheckpoint("{file}", save_weights_only=True{frequency})'
        )
        callbacks.append(f'keras.callbacks.TensorBoard("{directory}")')
    shown = f", callbacks=[{', '.join(callbacks)}]" if callbacks else ""
    return f"model.fit(input_fn(), steps_per_epoch=...{shown})  # {_steps(replicas, steps)}"


def _steps(replicas: int, steps: int) -> str:
    rule = "the steps of train()" if steps == 1 else f"those of train(), a multiple of {steps}"
    return rule + (f", of each of the {replicas} replicas" if replicas > 1 else "")


def _name(function: object) -> str:
    if isinstance(function, functools.partial):
        return f"{_name(function.func)}, with the arguments of the partial"
    return str(getattr(function, "__name__", function))
