"""The public names and signatures. A change here is a change for every user."""

import dataclasses
import functools
import inspect
import subprocess
import sys

import keras
import pytest

import millrace
from millrace.base.records.loops import LoopRecord
from millrace.base.records.memory import LiveBuffer
from millrace.base.records.program_memory import MemoryPeak
from millrace.base.records.run import RunRecords
from millrace.base.records.timeline import Timeline
from millrace.tools.reports.limits import RunLimits

PUBLIC = {"PipelineStage", "Strategy", "TrainingPlan", "distributed", "errors", "records"}
PUBLIC |= {"Attached", "callbacks", "layers", "optimizers"}
INSPECTION = {
    "InfeedQueue": "(dataset, prefetch_depth=2)",
    "MaybeOutfeedQueue": "(mode='all', filters=None, *, max_bytes=1073741824)",
    "OutfeedQueue": "(mode='all', *, max_bytes=1073741824)",
    "callbacks.BatchOutputs": "(function)",
    "callbacks.Checkpoint": (
        "(directory, *, every_steps=None, every_seconds=None, keep=3, async_save=True, "
        "deadline_seconds=30.0)"
    ),
    "callbacks.NaNWatch": "(gradients=('*',), *, last=10, directory=None)",
    "callbacks.OutfeedCallback": "(outfeed_queue, name='OutfeedCallback')",
    "callbacks.Report": "(directory)",
    "callbacks.TensorStatistics": (
        "(activations=(), gradients=(), when='before_apply', every=1, *, "
        "max_rows=1000000, tensorboard=None, histograms=False)"
    ),
    "compile": "(fn, *, replicas=None)",
    "dataset_benchmark": (
        "(dataset, number_of_epochs, elements_per_epochs, *, print_stats=True, do_memcpy=True)"
    ),
    "diff_programs": "(a, b, limit=5)",
    "infeed_benchmark": (
        "(infeed_queue, number_of_epochs, elements_per_epochs, *, print_stats=True, do_memcpy=True)"
    ),
    "layers.MaybeOutfeed": "(maybe_outfeed_queue, final_outfeed=True, **kwargs)",
    "layers.Outfeed": "(outfeed_queue, **kwargs)",
    "layers.outfeed_queues": "(queues)",
    "optimizers.OutfeedOptimizer": (
        "(wrapped_optimizer, outfeed_queue, "
        "outfeed_optimizer_mode=Moment.BEFORE_APPLY, name='OutfeedOptimizer', model=None)"
    ),
    "pipeline": (
        "(stages, micro_batches, *, updates=1, inputs=None, infeed=None, outfeed=None, "
        "optimizer_function=None, device_mapping=None, outfeed_loss=False, outfeed_mask=None, "
        "accumulate_outfeed=False, accumulate_outfeed_dtype=None, "
        "strategy=None, name='pipeline', **options)"
    ),
    "repeat": "(n, body, inputs=None, infeed=None)",
    "restore_checkpoint": "(directory, *, values=None, **objects)",
    "save_checkpoint": "(directory, step, *, keep=3, values=None, **objects)",
    "restore_weights": "(model, directory, step=None)",
    "value_and_grad": "(fn, variables, *args, **kwargs)",
    "while_loop": "(condition, body, inputs=None, infeed=None, maximum_iterations=None)",
}
PUBLIC |= {name for name in INSPECTION if "." not in name}
STRATEGY = {
    "__init__": (
        "(self, devices=None, *, target=None, cache_dir=<default>, report_dir=None, "
        "on_recompile='log', memory=None)"
    ),
    "attach": "(self, model)",
    "compile_log": "property",
    "detach": "(self, model)",
    "devices": "property",
    "export_executables": "(self, directory)",
    "load_executables": "(self, directory)",
    "memory_report": "(self, model, batch_spec, budget=None, *, steps_per_epoch=None)",
    "no_recompile": "(self)",
    "plan": "(self, model, batch_spec, memory=None, *, measure=False)",
    "records": "(self)",
    "run": "(self, fn, args=(), kwargs=None)",
    "scope": "(self)",
    "statistics": "(self)",
}
METHODS = {
    "get_pipeline_stage_assignment": "()",
    "precompile": "(batch_spec, *, steps_per_epoch=None)",
    "print_pipeline_stage_assignment_summary": "(line_length=None, print_fn=None)",
    "reset_pipeline_stage_assignment": "()",
    "set_pipeline_stage_assignment": "(assignment, *, num_stages=None, batch_spec=None)",
    "set_replication_options": (
        "(*, synchronized_batch_statistics=None, replicated_metric_reduction_method=None, "
        "replicated_optimizer_state_sharding=None, "
        "replicated_weight_sharding=None, offload_weight_update_variables=None, "
        "offload_weights=None)"
    ),
    "set_pipelining_options": (
        "(*, gradient_accumulation_steps_per_replica=None, device_mapping=None, "
        "gradient_accumulation_reduction_method=None, pipeline_schedule=None, "
        "gradient_accumulation_dtype=None, forward_propagation_stages_compiler_options=None, "
        "backward_propagation_stages_compiler_options=None, weight_update_compiler_options=None, "
        "batch_serialization_iterations=None, replicated_optimizer_state_sharding=None, "
        "replicated_weight_sharding=None, "
        "recomputation_mode=None, offload_weight_update_variables=None, offload_activations=None, "
        "offload_gradient_accumulation_buffers=None, offload_weights=None)"
    ),
    "set_asynchronous_callbacks": "(asynchronous=None, *, stop_within=None)",
    "set_gradient_accumulation_options": (
        "(*, gradient_accumulation_steps_per_replica=None, "
        "gradient_accumulation_reduction_method=None, dtype=None, micro_batch=None, "
        "synchronized_batch_statistics=None, "
        "offload_weight_update_variables=None, offload_gradient_accumulation_buffers=None)"
    ),
    "set_recomputation_options": "(*, mode='auto', budget=None)",
    "set_infeed_queue_options": (
        "(*, prefetch_depth=None, max_block_bytes=None, max_resident_bytes=None, "
        "max_wait_seconds=None)"
    ),
}
CALLBACKS = {
    "BatchOutputs",
    "Checkpoint",
    "NaNWatch",
    "OutfeedCallback",
    "OutfeedSummary",
    "Report",
}
CALLBACKS |= {"TensorStatistics"}
LAYERS = {"MaybeOutfeed", "Outfeed", "RecomputationCheckpoint"}
LAYERS |= {"outfeed_queues", "recomputation_checkpoint"}
DISTRIBUTED = (
    "(coordinator_address=None, num_processes=None, process_id=None, local_device_ids=None, *, "
    "initialization_timeout=300, heartbeat_timeout=30)"
)
ERRORS = {
    "BackendError": RuntimeError,
    "CheckpointError": RuntimeError,
    "DTypeError": TypeError,
    "DataError": ValueError,
    "DeviceError": RuntimeError,
    "LoopError": TypeError,
    "MillraceError": Exception,
    "ModelError": RuntimeError,
    "NotCompiledError": ValueError,
    "NonFiniteError": FloatingPointError,
    "OptionError": ValueError,
    "OutOfMemoryError": MemoryError,
    "PlanError": RuntimeError,
    "ProcessError": RuntimeError,
    "QueueError": RuntimeError,
    "RecompilationError": RuntimeError,
    "ScheduleError": ValueError,
    "TapError": ValueError,
    "TaskError": RuntimeError,
    "UnsupportedError": NotImplementedError,
    "VersionError": ImportError,
}


def parameters(function):
    """The signature without annotations."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def public(module):
    return {name for name in dir(module) if not name.startswith("_")}


def test_names_of_the_package():
    assert public(millrace) == PUBLIC


def test_names_of_the_modules():
    assert public(millrace.callbacks) == CALLBACKS
    assert public(millrace.distributed) == {"initialize"}
    assert public(millrace.errors) == set(ERRORS)
    assert public(millrace.layers) == LAYERS
    assert public(millrace.optimizers) == {"OutfeedOptimizer", "OutfeedOptimizerMode"}
    assert public(millrace.records) == {"load"}


def test_strategy():
    names = {name for name in vars(millrace.Strategy) if not name.startswith("_")}
    assert names | {"__init__"} == set(STRATEGY)
    for name, signature in STRATEGY.items():
        member = inspect.getattr_static(millrace.Strategy, name)
        found = "property" if isinstance(member, property) else parameters(member)
        assert found == signature, name


def test_distributed():
    assert parameters(millrace.distributed.initialize) == DISTRIBUTED


def test_methods_of_an_attached_model(strategy):
    stock = keras.Sequential([keras.layers.Dense(1)])
    attached = strategy.attach(keras.Sequential([keras.layers.Dense(1)]))
    added = {
        name
        for name in set(dir(attached)) - set(dir(stock))
        if not name.startswith("_") and name not in ("save_assets", "load_assets")
    }
    assert added == set(METHODS)
    for name, signature in METHODS.items():
        assert parameters(getattr(attached, name)) == signature
        assert getattr(attached, name).__doc__


def test_errors_are_the_builtin_ones_too():
    classes = {
        name: value
        for name, value in vars(millrace.errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert set(classes) == set(ERRORS)
    for name, builtin in ERRORS.items():
        assert issubclass(classes[name], (millrace.errors.MillraceError,))
        assert issubclass(classes[name], builtin)
        assert name == "MillraceError" or "Right:" in (classes[name].__doc__ or "")


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


def test_importing_millrace_first_chooses_jax():
    result = run("import millrace, keras; print(keras.backend.backend())")
    assert result.stdout.strip() == "jax", result.stderr


@pytest.mark.slow
def test_another_backend_is_refused_with_the_line_to_add():
    result = run("import keras; import millrace", KERAS_BACKEND="numpy")
    assert "BackendError" in result.stderr
    assert "Put `import millrace` above `import keras`" in result.stderr
    result = run("import millrace", KERAS_BACKEND="numpy")
    assert "KERAS_BACKEND='numpy'" in result.stderr
    assert "Set KERAS_BACKEND=jax" in result.stderr


@pytest.mark.parametrize("name", ["numpy", "keras"])
def test_a_file_in_place_of_a_package_is_named(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("import millrace")
    result = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {name}")
    assert f"VersionError: {tmp_path / name}.py is imported in place of" in result.stderr


@pytest.mark.parametrize("name", INSPECTION)
def test_what_looks_inside(name):
    found = functools.reduce(getattr, name.split("."), millrace)
    shown = parameters(found).replace(
        "<Moment.BEFORE_APPLY: 'before_apply'>", "Moment.BEFORE_APPLY"
    )
    assert shown == INSPECTION[name]


RECORDS = {
    "load": "(directory)",
    "RunRecords": "path processes loops epochs executions feeds compilations memory_profiles "
    "operations traces tensors budgets memory_reports flights damaged memory "
    "trace timeline",
    "LoopRecord": "number process model mode began ended outcome error options stages replicas "
    "devices parameters executions steps epochs compile_seconds planning_seconds wait_seconds "
    "seconds",
    "Timeline": "spans num_groups num_stages has_stage_per_group end busy idle bubble in_flight "
    "peak_in_flight",
    "MemoryPeak": "point bytes tensors layers",
    "LiveBuffer": "name nbytes layer opcode shape operation inferred",
    "RunLimits": "wall_seconds seconds limit advice steps executions shares",
}


def test_records_of_a_run():
    """The attributes that programs read; a record may get more of them."""
    assert [name for name in vars(millrace.records) if name in RECORDS] == ["load"]
    assert parameters(millrace.records.load) == RECORDS["load"]
    classes = (RunRecords, LoopRecord, Timeline, MemoryPeak, LiveBuffer, RunLimits)
    for each in classes:
        fields = [field.name for field in dataclasses.fields(each)]
        properties = [name for name, value in vars(each).items() if isinstance(value, property)]
        assert set(RECORDS[each.__name__].split()) <= {*fields, *properties}, each.__name__
        assert each.__dataclass_params__.frozen


def public_objects():
    for name in sorted(PUBLIC - {"distributed", "errors", "records", *PACKAGES}):
        yield name, getattr(millrace, name)
    for package in PACKAGES:
        for name in vars(getattr(millrace, package)):
            value = getattr(getattr(millrace, package), name)
            if getattr(value, "__module__", "").startswith("millrace") and name[0] != "_":
                yield f"{package}.{name}", value


PACKAGES = ("callbacks", "layers", "optimizers")


def test_all_that_is_public_has_a_docstring():
    without = []
    for name, value in public_objects():
        members = vars(value) if inspect.isclass(value) else {}
        for member, each in [("", value), *members.items()]:
            is_public = not member.startswith("_") and (callable(each) or hasattr(each, "fget"))
            if is_public and not inspect.getdoc(getattr(value, member) if member else value):
                without.append(f"{name}.{member}")
    assert without == []
