"""Stock Keras models, trained as whole compiled programs on any XLA device.

    extend.py            for packages that put another library's words on top of millrace
    api/            what users call
      strategy/             Strategy, its scope, and the methods it adds to models
      callbacks/            look at a model while it trains
      layers/ optimizers/   layers that mark or enqueue values; optimizers around another one
      own_loops/            training loops of the user's own, as compiled programs
      checkpoints/          a fit and own loops are saved, and continue with the same numbers
      function_pipelines/   pipelines of functions, in place of a model's layers
      target_commands.py    `millrace plan`, `millrace memory`: scripts on devices of a target
    tools/          what is measured, planned and shown
      planning/             one plan for everything that decides how an update runs
      memory_report/        what training will need, and what to change where it does not fit
      operations/           FLOPs, bytes and times of compiled programs, layer by layer
      recording/ reports/   the run that keeps records, and the page made of them
      benchmark/            how fast data comes
      cli/                  the command `millrace`
    run/            what runs executables
      fit/                  what Keras's fit, evaluate and predict call, and what they draw from
      precompile/           compiles what a loop would run, and runs nothing
      memory/               the bytes of compiled programs, operation by operation
      pipelines/            a model's layers as stages on devices of their own
      schedules/            the order of a pipeline's tasks
      compiled_loop/        a model in one piece: one program of many steps, and its runner
      processes/            who else runs, what all must agree on, how they fail together
      timing/ recording/    when devices ran what they were told to run; the records of a loop
    compilation/    from a program to an executable
      finder.py             the one way: loaded, shared, read from disk, or compiled
      executables/          programs -> executables, logged and shared
      explain/              what identifies a program, and what differs between two
      cache/ export/        executables on disk; executables written for other processes
    programs/       what is computed, as pure functions
      plan.py               what a program is to do
      steps/ replicas/      one step and one update; what replicas compute apart and together
      recomputation/        what backward computes again, and within what budget
      taps/ feeds/          values out of a program; batches -> blocks on the device
    base/           what all others stand on
      options/ records/     what the user chose; what a run leaves behind
      targets/              devices that are described and not here, a file of data for each
      checkpoints/          checkpoints on disk, and states of objects and generators
      threads/ interrupts.py devices.py arguments.py activities.py collector.py own_code.py
      pytrees.py error_notes.py
    _compat/        private names of Keras and JAX, used nowhere else

The modules beside these folders are public, but for `_backend.py`, which makes JAX the backend of
Keras. `errors.py` has everything that is raised on purpose; `extend.py` is the seam for packages on
top of millrace.

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
from millrace.api.checkpoints.own_loops import restore_checkpoint as restore_checkpoint
from millrace.api.checkpoints.own_loops import save_checkpoint as save_checkpoint
from millrace.api.checkpoints.weights import restore_weights as restore_weights
from millrace.api.function_pipelines.pipeline import pipeline as pipeline
from millrace.api.own_loops.function import compile as compile
from millrace.api.own_loops.gradients import value_and_grad as value_and_grad
from millrace.api.own_loops.repeat import repeat as repeat
from millrace.api.own_loops.repeat import while_loop as while_loop
from millrace.api.strategy.attached import Attached as Attached
from millrace.api.strategy.strategy import Strategy as Strategy
from millrace.compilation.explain.program_difference import diff_programs as diff_programs
from millrace.programs.feeds.infeed_queue import InfeedQueue as InfeedQueue
from millrace.programs.taps.maybe_outfeed import MaybeOutfeedQueue as MaybeOutfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue as OutfeedQueue
from millrace.run.pipelines.assignment.marks import PipelineStage as PipelineStage
from millrace.tools.benchmark.throughput import dataset_benchmark as dataset_benchmark
from millrace.tools.benchmark.throughput import infeed_benchmark as infeed_benchmark
from millrace.tools.planning.training_plan import TrainingPlan as TrainingPlan

_backend.while_imported.close()

__version__ = "0.1.0"
_PACKAGES = ("api", "base", "compilation", "extend", "programs", "run", "tools")


def __dir__() -> list[str]:
    """Lists the names for users, without the packages that they are made of."""
    return [name for name in globals() if name not in _PACKAGES]
