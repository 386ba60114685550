"""Stock Keras models, trained as whole compiled programs on any XLA device.

    cli/main.py          the command `millrace`; cli/compilation.py, cli/porting.py: parts of it
    porting/        runs IPU programs as they are, and reports what will not carry over
    ipu/            `tensorflow.python.ipu`, on Keras 3 and JAX
    tensorflow/     the part of TensorFlow that IPU programs use
    callbacks/      look at a model while it trains
    cli/types.py    types of options that several commands share
    cli/compile_log_table.py, cli/cache_table.py    what a run has compiled, what the cache holds
    benchmark/      how fast data comes, and whether a model waits for it
    loops/          training loops of the user's own, as compiled programs
    pipelines/      pipelines of functions, in place of a model's layers
    replay/         runs an update again that went wrong
    cli/launch.py       a run of several processes on this machine
    distributed.py  connects the processes of a run
    layers/         for models: they enqueue what passes through
    optimizers/     for models: they enqueue gradients
    strategy/       Strategy, its scope, and the methods it adds to models
    feeds/          batches -> blocks on the device
    runtime/        calls executables in order
    compiling/      programs -> executables, logged, shared, exported
    keys/           what identifies a program, and what differs between two
    cache/          executables on disk
    programs/       pure JAX functions of a model
    plan.py         what a program is to do
    graph/          the calls of a model, and the stages cut from it
    schedules/      the order of a pipeline's tasks
    devices.py      the devices of a strategy
    processes/      who else runs, what all must agree on, how they fail together
    arguments.py    refuses a misspelled argument, with the name that was meant
    interrupts.py   Ctrl-C waits for a place where the model is whole
    options.py      what the user chose
    records/        what a run leaves behind
    _compat/        private names of Keras and JAX, used nowhere else
    _backend.py     makes JAX the backend of Keras
    errors.py       everything raised on purpose

Importing millrace before Keras makes JAX the backend.
"""

from millrace import _backend as _backend  # first: it decides how Keras is imported
from millrace import _compat as _compat  # second: it looks at the installed Keras and JAX
from millrace import callbacks as callbacks
from millrace import distributed as distributed
from millrace import errors as errors
from millrace import layers as layers
from millrace import optimizers as optimizers
from millrace import records as records
from millrace.benchmark.throughput import dataset_benchmark as dataset_benchmark
from millrace.benchmark.throughput import infeed_benchmark as infeed_benchmark
from millrace.benchmark.verdict import feed_verdict as feed_verdict
from millrace.explain.compare import diff_programs as diff_programs
from millrace.feeds.infeed_queue import InfeedQueue as InfeedQueue
from millrace.function_pipelines.pipeline import pipeline as pipeline
from millrace.loops.function import compile as compile
from millrace.loops.gradients import value_and_grad as value_and_grad
from millrace.loops.repeat import repeat as repeat
from millrace.loops.repeat import while_loop as while_loop
from millrace.pipelines.assignment.marks import PipelineStage as PipelineStage
from millrace.strategy.strategy import Strategy as Strategy
from millrace.taps.maybe_outfeed import MaybeOutfeedQueue as MaybeOutfeedQueue
from millrace.taps.outfeed import OutfeedQueue as OutfeedQueue

__version__ = "0.1.0"
