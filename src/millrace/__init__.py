"""Stock Keras models, trained as whole compiled programs on any XLA device.

    extend.py            for packages that put another library's words on top of millrace
    cli/                 the command `millrace`
    function_pipelines/  pipelines of functions, in place of a model's layers
    optimizers/          optimizers around another one, such as one that shows gradients
    callbacks/           look at a model while it trains
    loop_checkpoints/    saves own loops, which go on from there with the same numbers
    replay/              runs an update again that went wrong
    loops/               training loops of the user's own, as compiled programs
    benchmark/           how fast data comes, and whether a model waits for it
    layers/              layers that mark what is kept, or enqueue what passes through
    distributed.py       connects the processes of a run
    strategy/            Strategy, its scope, and the methods it adds to models
    recording/           what a strategy writes about its runs
    planning/            one plan for everything that decides how an update runs
    memory_report/       what training will need, and what to change where it does not fit
    resuming/            what a training is made of, saved and restored
    precompile/          compiles what a loop would run, and runs nothing
    operations/          FLOPs, bytes and times of compiled programs, layer by layer
    fit/                 what Keras's fit, evaluate and predict call, and what they draw from
    memory/              the bytes of compiled programs, operation by operation
    pipelines/           a model's layers as stages on devices of their own
    compiled_loop/       a model in one piece: one program of many steps, and its runner
    export/              executables written for other processes
    compiling/           programs -> executables, logged and shared
    replicas/            what replicas compute apart, and together
    steps/               one step and one update, as pure functions
    recomputation/       what backward computes again, and within what budget
    explain/             what identifies a program, and what differs between two
    feeds/               batches -> blocks on the device
    taps/                values out of a program, to queues and callbacks
    plan.py              what a program is to do
    reports/             the page of a run, made of its records
    timing/              when devices ran what they were told to run
    devices.py           the devices of a strategy
    schedules/           the order of a pipeline's tasks
    processes/           who else runs, what all must agree on, how they fail together
    cache/               executables on disk
    checkpoints/         checkpoints on disk, and states of objects and generators
    arguments.py         refuses a misspelled argument, with the name that was meant
    interrupts.py        Ctrl-C waits for a place where the model is whole
    options/             what the user chose
    records/             what a run leaves behind
    _compat/             private names of Keras and JAX, used nowhere else
    _backend.py          makes JAX the backend of Keras
    threads/             values of one thread, and tables that threads share
    errors.py            everything raised on purpose
    own_code.py          which code is ours, where a line of the user's is looked for
    collector.py         Python's collector of garbage, held back while programs are traced
    pytrees.py           types of trees of arrays

Importing millrace before Keras makes JAX the backend.
"""

from types import ModuleType as _ModuleType

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
from millrace.explain.program_difference import diff_programs as diff_programs
from millrace.feeds.infeed_queue import InfeedQueue as InfeedQueue
from millrace.function_pipelines.pipeline import pipeline as pipeline
from millrace.loop_checkpoints.calls import restore_checkpoint as restore_checkpoint
from millrace.loop_checkpoints.calls import save_checkpoint as save_checkpoint
from millrace.loops.function import compile as compile
from millrace.loops.gradients import value_and_grad as value_and_grad
from millrace.loops.repeat import repeat as repeat
from millrace.loops.repeat import while_loop as while_loop
from millrace.pipelines.assignment.marks import PipelineStage as PipelineStage
from millrace.planning.training_plan import TrainingPlan as TrainingPlan
from millrace.resuming.stored_models import restore_weights as restore_weights
from millrace.strategy.strategy import Strategy as Strategy
from millrace.taps.maybe_outfeed import MaybeOutfeedQueue as MaybeOutfeedQueue
from millrace.taps.outfeed import OutfeedQueue as OutfeedQueue

_backend.while_imported.close()

__version__ = "0.1.0"
_MODULES = (
    "callbacks",
    "distributed",
    "errors",
    "layers",
    "optimizers",
    "records",
)


def __dir__() -> list[str]:
    """Lists the names for users, without the packages that they are made of."""
    return [
        name
        for name, value in globals().items()
        if name in _MODULES or not isinstance(value, _ModuleType)
    ]
