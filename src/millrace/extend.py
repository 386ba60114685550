"""The seam for a package that puts another library's words on top of millrace.

Such a package uses the public names, and these. They are not for programs: they may change with
any version, so the package asks for one version of millrace. It adds commands to `millrace` by
entry points of the group "millrace.commands", each a command of click.

The names are grouped by what they are for; a line of code that fits two groups is in the first.
"""

# ruff: noqa: I001 - by group, not by module

# The package: its code counts as millrace's where a line of the user's is looked for.
from millrace.base.own_code import add_own_package as add_own_package
from millrace.base.own_code import is_own_file as is_own_file
from millrace.base.own_code import is_own_module as is_own_module

# Rules of a model's loops: `controller.put_rules(rules)`, with a class derived from `Rules`.
from millrace._compat.keras_data import DataAdapter as DataAdapter
from millrace._compat.keras_data import get_data_adapter as get_data_adapter
from millrace._compat.keras_data import is_array_adapter as is_array_adapter
from millrace._compat.keras_data import stacked as stacked
from millrace._compat.keras_graph import has_own_call as has_own_call
from millrace.run.fit.checks import check_made_functions as check_made_functions
from millrace.run.fit.checks import check_pipelined_step as check_pipelined_step
from millrace.run.fit.checks import factors as factors
from millrace.run.fit.controller import Controller as Controller
from millrace.run.fit.controller import controller_of as controller_of
from millrace.run.fit.setup import Rules as Rules
from millrace.run.fit.setup import Setup as Setup
from millrace.run.fit.pipelined_model import groups_needed as groups_needed
from millrace.programs.plan import Mode as Mode
from millrace.api.strategy.attach import bound as bound
from millrace.api.strategy.attach import move_values as move_values
from millrace.api.strategy.strategy import strategy_in_scope as strategy_in_scope

# Options of a model, as its setters put them in force, and checks of values.
from millrace.base.arguments import refuse_unknown as refuse_unknown
from millrace.base.options import Accumulation as Accumulation
from millrace.base.options import Feed as Feed
from millrace.base.options import MetricReduction as MetricReduction
from millrace.base.options import Offload as Offload
from millrace.base.options import Options as Options
from millrace.base.options import Pipelining as Pipelining
from millrace.base.options import Recomputation as Recomputation
from millrace.base.options import RecomputationMode as RecomputationMode
from millrace.base.options import Reduction as Reduction
from millrace.base.options import truth as truth
from millrace.base.options import whole_number as whole_number
from millrace.run.schedules.table import check_batch_serialization as check_batch_serialization

# Pipeline stages of a model's layers, and of functions.
from millrace.api.function_pipelines.chain import make_chain as make_chain
from millrace.run.pipelines.assignment.assignment import Assignment as Assignment
from millrace.run.pipelines.assignment.assignment import from_json as from_json
from millrace.run.pipelines.assignment.assignment import get_assignment as get_assignment
from millrace.run.pipelines.assignment.assignment import scoped_stages as scoped_stages
from millrace.run.pipelines.assignment.assignment import to_json as to_json
from millrace.run.pipelines.assignment.layer_calls import find_calls as find_calls
from millrace.run.pipelines.assignment.layer_calls import leaves as leaves
from millrace.run.pipelines.assignment.lists import (
    NestedPipelineStageAssignment as NestedPipelineStageAssignment,
)
from millrace.run.pipelines.assignment.lists import (
    PipelineStageAssignment as PipelineStageAssignment,
)
from millrace.run.pipelines.assignment.summary import summary_lines as summary_lines

# Functions and loops that are compiled: what is traced, and what it touches.
from millrace._compat.jax_tracing import is_traced as is_traced
from millrace._compat.jax_tracing import is_tracing as is_tracing
from millrace._compat.keras_steps import current_scope as current_scope
from millrace.base.checkpoints.random_state import share_seed as share_seed
from millrace.api.own_loops.body import arguments_of as arguments_of
from millrace.api.own_loops.body import as_array as as_array
from millrace.api.own_loops.function import CompiledFunction as CompiledFunction
from millrace.api.own_loops.host_loop import OnHost as OnHost
from millrace.api.own_loops.host_loop import require_host as require_host
from millrace.api.own_loops.log_subject import identity as identity
from millrace.api.own_loops.scope import VariableScope as VariableScope
from millrace.api.own_loops.scope import context_of as context_of
from millrace.api.own_loops.scope import enclosing_loop as enclosing_loop
from millrace.api.own_loops.scope import look_at as look_at
from millrace.api.own_loops.program import compiles_only as compiles_only
from millrace.programs.taps.structure import ordered as ordered
from millrace.programs.taps.structure import plain as plain
from millrace.programs.taps.taps import collecting as collecting
from millrace.programs.taps.taps import tap_again as tap_again
from millrace.base.threads.scoped_value import Notes as Notes
from millrace.base.threads.scoped_value import ScopedValue as ScopedValue

# Replicas of a compiled function, and optimizers around another one.
from millrace._compat.keras_optimizers import trained_by as trained_by
from millrace.api.own_loops.replication import cross_replica_mean as cross_replica_mean
from millrace.api.own_loops.replication import cross_replica_sum as cross_replica_sum
from millrace.api.own_loops.replication import holds_anywhere as holds_anywhere
from millrace.api.own_loops.replication import in_replica as in_replica
from millrace.api.own_loops.replication import largest as largest
from millrace.api.own_loops.replication import launch_in_force as launch_in_force
from millrace.api.own_loops.replication import ReplicaLaunch as ReplicaLaunch
from millrace.api.own_loops.replication import replicas as replicas
from millrace.api.own_loops.replication import replication_index as replication_index
from millrace.api.optimizers.wrapping import WrappingOptimizer as WrappingOptimizer
from millrace._compat.keras_optimizers import wrapped_chain as wrapped_chain
from millrace.programs.steps.accumulate import accumulator_dtype as accumulator_dtype
from millrace.programs.steps.step import are_prepared as are_prepared

# Devices and processes.
from millrace._compat.jax_memory import host_memory as host_memory
from millrace._compat.jax_processes import backends_are_initialized as backends_are_initialized
from millrace.base.devices import ask_for_virtual as ask_for_virtual
from millrace.base.devices import devices_of_environment as devices_of_environment
from millrace.run.processes.agreement import Launched as Launched
from millrace.run.processes.agreement import process_count as process_count
from millrace.run.processes.agreement import process_index as process_index
from millrace.run.processes.agreement import texts_of_all as texts_of_all

# Programs: the cache, the phrases of the log, and listeners to what is compiled.
from millrace.compilation.cache.listeners import ProgramListener as ProgramListener
from millrace.compilation.cache.listeners import register_listener as register_listener
from millrace.compilation.cache.listeners import unregister_listener as unregister_listener
from millrace.compilation.cache.use import cache_statistics as cache_statistics
from millrace.compilation.cache.use import use_cache as use_cache
from millrace.compilation.executables.phases import Phrases as Phrases
from millrace.compilation.executables.phases import show_phases as show_phases
from millrace.compilation.executables.phases import use_phrases as use_phrases

# Records of programs and loops, which listeners and sinks get.
from millrace.tools.recording.run import RecordedRun as RecordedRun
from millrace.base.records.cache import EntryLabels as EntryLabels
from millrace.base.records.compilation import CompileRecord as CompileRecord
from millrace.base.records.compilation import Origin as Origin
from millrace.base.records.loops import ExecutionSample as ExecutionSample
from millrace.base.records.loops import FeedSample as FeedSample
from millrace.base.records.loops import LoopRecord as LoopRecord
from millrace.base.records.memory_report import MemoryReport as MemoryReport
from millrace.base.records.operations import ProgramOperations as ProgramOperations
from millrace.base.records.program_memory import ProgramMemory as ProgramMemory
from millrace.base.records.sinks import RecordSinks as RecordSinks
from millrace.base.records.trace import ExecutionTrace as ExecutionTrace

# Patches of Keras, JAX and Python: put in, listed by `patches_in`, and taken out.
from millrace._compat.patches import Patch as Patch
from millrace._compat.patches import While as While
from millrace._compat.patches import patches_in as patches_in
from millrace._compat.patches import put_in as put_in
from millrace._compat.patches import replace as replace
from millrace._compat.patches import take_out as take_out

# Commands that start scripts.
from millrace.tools.cli.launch import LaunchOptions as LaunchOptions
from millrace.tools.cli.launch import launch as launch
from millrace.tools.cli.types import launch_options as launch_options
