"""Stock Keras models, trained as whole compiled programs on any XLA device.

    cli.py          the command `millrace`
    launch.py       a run of several processes on this machine
    distributed.py  connects the processes of a run
    strategy/       Strategy, its scope, and the methods it adds to models
    feeds/          batches -> blocks on the device
    runtime/        calls executables in order
    compiling/      programs -> executables, logged
    programs/       pure JAX functions of a model
    plan.py         what a program is to do
    graph/          the calls of a model, and the stages cut from it
    schedules/      the order of a pipeline's tasks
    processes/      who else runs, what all must agree on, how they fail together
    options.py      what the user chose
    records/        what a run leaves behind
    errors.py       everything raised on purpose

Importing millrace before Keras makes JAX the backend.
"""

from millrace import _backend as _backend  # first: it decides how Keras is imported
from millrace import distributed as distributed
from millrace import errors as errors
from millrace import records as records
from millrace.graph.marks import PipelineStage as PipelineStage
from millrace.strategy.strategy import Strategy as Strategy

__version__ = "0.1.0"
