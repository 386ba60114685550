"""The errors that millrace raises on purpose.

    MillraceError
    ├── BackendError       Keras runs on another backend than JAX             (also RuntimeError)
    ├── CheckpointError    a checkpoint cannot be written, read or continued  (also RuntimeError)
    ├── DeviceError        the devices asked for do not exist                 (also RuntimeError)
    ├── DTypeError         a value has a type that devices cannot compute in  (also TypeError)
    ├── LoopError          a loop's function does not fit the loop's values   (also TypeError)
    ├── OptionError        an option has an invalid value, or does not exist    (also ValueError)
    ├── ModelError         a compiled loop cannot run the model               (also RuntimeError)
    │   └── NotCompiledError   it has no optimizer and no loss yet              (also ValueError)
    ├── DataError          the data cannot be fed to a compiled loop          (also ValueError)
    ├── NonFiniteError     jax_debug_nans or _infs found one            (also FloatingPointError)
    ├── OutOfMemoryError   a device has not enough memory for an execution     (also MemoryError)
    ├── PlanError          options, model and data do not fit together        (also RuntimeError)
    ├── ProcessError       a process of the run did not come, or failed       (also RuntimeError)
    ├── QueueError         a queue cannot be read in this way                 (also RuntimeError)
    ├── RecompilationError a compilation that the user has forbidden          (also RuntimeError)
    ├── ScheduleError      tasks that no pipeline could run in that order     (also ValueError)
    ├── TapError           a value cannot be carried out of a program         (also ValueError)
    ├── TaskError          one task of a running pipeline failed              (also RuntimeError)
    ├── UnsupportedError   options that cannot run together           (also NotImplementedError)
    └── VersionError       the installed Keras or JAX does not fit         (also ImportError)

Each is also the builtin error that users of Keras would catch in its place. A message says what
happened, shows the values, and ends with what to set instead.
"""


class MillraceError(Exception):
    """Base of all errors that millrace raises on purpose."""


class BackendError(MillraceError, RuntimeError):
    """Keras was imported with another backend than JAX.

    Wrong:

        import keras      # picks another backend
        import millrace

    Right:

        import millrace   # picks JAX
        import keras
    """


class CheckpointError(MillraceError, RuntimeError):
    """A checkpoint cannot be written or read, or the training does not continue it.

    Wrong:

        model.compile("sgd", "mse")       # the checkpoints in "run" are those of an Adam
        model.fit(x, y, callbacks=[millrace.callbacks.Checkpoint("run")])

    Right:

        model.compile("adam", "mse")
        model.fit(x, y, callbacks=[millrace.callbacks.Checkpoint("run")])
    """


class DeviceError(MillraceError, RuntimeError):
    """The devices asked for do not exist, or no longer can.

    Wrong:

        jax.devices()                     # starts JAX with one CPU device
        millrace.Strategy(devices="cpu:8")

    Right:

        millrace.Strategy(devices="cpu:8")
        jax.devices()
    """


class DTypeError(MillraceError, TypeError):
    """A value has a type that devices cannot compute in.

    Wrong: `strategy.run(fn, [numpy.zeros(3)])`

    Right: `strategy.run(fn, [numpy.zeros(3, "float32")])`
    """


class LoopError(MillraceError, TypeError):
    """The body or the condition of a loop does not fit the values that it gets or carries.

    Wrong: `millrace.repeat(10, lambda count: count * 0.5, inputs=0)`

    Right: `millrace.repeat(10, lambda count: count * 0.5, inputs=0.0)`
    """


class OptionError(MillraceError, ValueError):
    """An option has an invalid value, or a name that does not exist.

    Wrong: `model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=0)`

    Right: `model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)`
    """


class ModelError(MillraceError, RuntimeError):
    """A compiled loop cannot run the model as it is written or compiled.

    Wrong: `model.compile(..., run_eagerly=True)` with several replicas or stages.

    Right: `model.compile(...)`, or `Strategy(devices=1)`.
    """


class NotCompiledError(ModelError, ValueError):
    """A model is to be measured, planned or compiled ahead before `compile()` was called.

    Wrong: `model.precompile((x[:32], y[:32]))` as the first call on a model.

    Right: `model.compile("adam", "mse")` before it.
    """


class DataError(MillraceError, ValueError):
    """The data cannot be fed to a compiled loop.

    Wrong: `model.fit(dataset.repeat())`

    Right: `model.fit(dataset.repeat(), steps_per_epoch=100)`
    """


class NonFiniteError(MillraceError, FloatingPointError):
    """An execution returned a NaN or an infinity while JAX's options ask for a check.

    Wrong: `jax.config.update("jax_debug_nans", True)` with a learning rate of 1e6.

    Right: a smaller learning rate, or `keras.callbacks.TerminateOnNaN()` in its place.
    """


class OutOfMemoryError(MillraceError, MemoryError):
    """A device has not enough memory for an execution. The message shows how it is used.

    Wrong: `model.fit(x, y, batch_size=4096)` on a device that 512 rows fill.

    Right: `strategy.memory_report(model, (x[:4096], y[:4096]))` before, and a change that it lists.
    """


class PlanError(MillraceError, RuntimeError):
    """Options, model and data are valid alone, but do not fit together.

    Wrong: `steps_per_execution=8` with an accumulation of 3, on an epoch of 100 steps.

    Right: `steps_per_execution=9` with an accumulation of 3.
    """


class ProcessError(MillraceError, RuntimeError):
    """A process of a run did not arrive, or failed.

    Wrong: two runs at once, both with `coordinator_address="node1:1234"`.

    Right: a port for each run, the same in all its processes.
    """


class QueueError(MillraceError, RuntimeError):
    """A queue cannot be read in this way.

    Wrong:

        queue = millrace.OutfeedQueue(mode="last")
        queue.dequeue()                   # before anything was enqueued

    Right:

        strategy.run(train)               # which enqueues
        queue.dequeue()
    """


class RecompilationError(MillraceError, RuntimeError):
    """A program would be compiled where the user has forbidden compilation.

    Wrong: `Strategy(on_recompile="error")`, and 100 rows in batches of 32, the last one of 4.

    Right: `model.fit(dataset.batch(32, drop_remainder=True))`
    """


class ScheduleError(MillraceError, ValueError):
    """A schedule lacks a task, or has an order of tasks that no pipeline can run.

    Wrong: `0F0 0B0 / 1B0 1F0`, where the backward of stage 1 comes before its own forward.

    Right: `0F0 0B0 / 1F0 1B0`
    """


class TapError(MillraceError, ValueError):
    """A value cannot be carried out of a program.

    Wrong:

        queue.enqueue(loss)
        queue.enqueue(accuracy)           # in the same program

    Right:

        queue.enqueue({"loss": loss, "accuracy": accuracy})
    """


class TaskError(MillraceError, RuntimeError):
    """A task of a running pipeline failed. The message shows the schedule with the task marked.

    Wrong: stages whose activations do not fit their device.

    Right: more stages, or a smaller micro-batch.
    """


class UnsupportedError(MillraceError, NotImplementedError):
    """Options that are valid together, but cannot run together.

    Wrong: `set_pipelining_options(batch_serialization_iterations=4, pipeline_schedule="1f1b")`

    Right: `set_pipelining_options(batch_serialization_iterations=4)`
    """


class VersionError(MillraceError, ImportError):
    """Keras or JAX is too old, lacks a private name that millrace uses, or is another file.

    Wrong: `python -m pip install millrace "keras==3.12"`

    Right: `python -m pip install millrace "keras>=3.13,<3.17"`
    """
