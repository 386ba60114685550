"""All private names of Keras and JAX that millrace uses: where each is, and what it is for.

A place is written `module:class`, or `module` alone. `versions.py` looks for all of them when
millrace is imported; the tests compare the table with what this package uses. An attribute that is
read off an object is listed under its class, and one that functions are given under the module
that gives it. What has moved has one place for each version from which on it is there; `()` says
that a version has no such name, and needs none.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["NAMES", "TESTED", "Private"]

# The oldest and the newest version that the tests run on; pyproject.toml has the same bounds.
TESTED = {"keras": ("3.13", "3.16"), "jax": ("0.10", "0.12")}


@dataclass(frozen=True, slots=True)
class Private:
    """A private name.

    Attributes:
        name: such as `cond` or `_nodes_by_depth`.
        use: what millrace needs it for.
        places: the versions from which on it is in these places. Where there are several, the
            library looks it up in each of them.
    """

    name: str
    use: str
    places: Mapping[str, tuple[str, ...]]


def _in(*places: str, **uses: str) -> tuple[Private, ...]:
    """Names that are in the same place in all versions."""
    return tuple(Private(name, use, {"0": places}) for name, use in uses.items())


_DATA = "keras.src.trainers.data_adapters"
_STATE = "keras.src.backend.common.global_state"
_TRAINER = "keras.src.backend.jax.trainer"
_BACKEND = {
    "0": ("keras.src.backend.jax.core",),
    "3.16": ("keras.src.backend.jax.ops.core", "keras.src.backend.jax.ops"),
}

_KERAS = (
    # What a model calls, and in which order.
    Private("cond", "branches of a conditional can assign variables", _BACKEND),
    Private("remat", "what Keras recomputes is recomputed by millrace's rules", _BACKEND),
    *_in("keras.src.models.functional", Functional="tells graphs from models with a `call`"),
    *_in("keras.src.ops.function", Function="runs a graph"),
    *_in(
        "keras.src.models.functional:Functional",
        _nodes_by_depth="the calls of a graph in the order in which Keras runs them",
        _inputs_struct="what a graph is called with",
        _run_through_graph="the place in which each call of a graph is wrapped",
    ),
    *_in("keras:Sequential", _functional="the graph that a Sequential runs"),
    *_in("keras.src.ops.node", Node="a call in a graph, which notes its stage"),
    *_in(
        "keras.src.ops.node:Node",
        _keras_history="the operation that made a value",
        arguments="what a call is given",
        input_tensors="which values a call takes",
        is_input="tells inputs from calls",
        operation="what is called",
    ),
    *_in("keras.src.ops.operation", Operation="anything that is called; it notes its stage"),
    *_in("keras.src.ops.operation:Operation", _inbound_nodes="the calls of an operation"),
    *_in("keras:Layer", _remat_mode="how a layer is told to be recomputed"),
    *_in("keras:Layer", _flatten_layers="the layers inside a layer"),
    *_in("keras:Layer", _call_has_training_arg="whether a `call` takes `training`"),
    *_in("keras:Layer.build", _is_default="tells Keras's `build` from the user's"),
    *_in(
        "keras.src.ops.symbolic_arguments:SymbolicArguments",
        args="what a call in a graph is given",
        kwargs="what a call in a graph is given by name",
    ),
    *_in("keras.src.ops.node:KerasHistory", node_index="the call that made a value"),
    *_in(
        "keras.src.backend",
        compute_output_spec="runs a model on shapes",
        in_stateless_scope="whether a model is running",
    ),
    *_in(
        _STATE,
        get_global_attribute="which scopes are open, and which layer is running",
        set_global_attribute="leaves a scope for as long as an optimizer is made",
    ),
    *_in(
        "keras.src.backend.common.stateless_scope",
        get_stateless_scope="the scope that variables are read from",
    ),
    *_in(
        "keras.src.backend.common.symbolic_scope",
        in_symbolic_scope="whether layers run to find out shapes",
    ),
    *_in("keras:Variable", _value="what a variable holds outside of every scope"),
    # The loops.
    *_in(_TRAINER, JAXEpochIterator="decides what fit, evaluate and predict draw"),
    *_in(
        "keras.src.trainers.epoch_iterator:EpochIterator",
        _current_iterator="the pass through the data that is running",
        _enumerate_iterator="yields the executions of an epoch",
        _interrupted_warning="says that the data ended early",
        _num_batches="the length of a pass",
        _steps_seen="how far a pass is",
        data_adapter="what the data was made into",
        steps_per_epoch="how long an epoch is",
    ),
    *_in(
        "keras:Model",
        _compile_config="what the user gave to `compile`",
        _compile_loss="whether a model was compiled anew",
        _compile_metrics="whether a model was compiled anew",
        _get_metrics_result_or_logs="what fit and evaluate report",
        _jax_state="the values of a running loop",
        _jax_state_synced="whether the variables have the values of a running loop",
        _symbolic_build="makes the variables that fit makes",
        _update_metrics_variables="the metrics of a step",
        compute_loss_and_updates="the loss of a step, to be differentiated",
    ),
    Private(
        "state_sync",
        "brings the values of a running loop back to the variables",
        {"0": (), "3.16": ("keras:Model",)},
    ),
    Private(
        "jax_state_sync",
        "brings the values of a running loop back to the variables",
        {"0": ("keras:Model",), "3.16": ()},
    ),
    Private(
        "_maybe_symbolic_build",
        "checks the batch that fit makes variables from",
        {"0": (), "3.16": ("keras:Model",)},
    ),
    Private(
        "_get_unbuilt_components",
        "whether fit makes variables",
        {"0": (), "3.16": ("keras:Model",)},
    ),
    # Data.
    *_in(_DATA, get_data_adapter="what Keras makes of `x`, and adds kinds of data"),
    *_in(f"{_DATA}.array_data_adapter", ArrayDataAdapter="tells arrays from other data"),
    *_in(f"{_DATA}.data_adapter", DataAdapter="the base of data sets of other kinds"),
    *_in(f"{_DATA}.tf_dataset_adapter:TFDatasetAdapter", _dataset="whether a tf.data never ends"),
    *_in(f"{_DATA}.py_dataset_adapter:PyDatasetAdapter", py_dataset="a data set of an unknown end"),
    Private(
        "_epoch",
        "the number that the order of rows is drawn from",
        {"0": (), "3.16": (f"{_DATA}.array_data_adapter:ArrayDataAdapter",)},
    ),
    Private(
        "super_batch_iterator",
        "gives Keras's own scan several steps at a time",
        {"0": (), "3.16": (f"{_DATA}.data_adapter_utils",)},
    ),
    # Optimizers.
    *_in(
        "keras.optimizers:Optimizer",
        _exclude_from_weight_decay="the ids of variables without weight decay",
        _exclude_from_weight_decay_pattern="the names of variables without weight decay",
        _trainable_variables="the order of an optimizer's variables",
    ),
    # TensorFlow, where a module of millrace stands in for it.
    *_in("keras.src.utils.module_utils", tensorflow="what Keras takes for TensorFlow"),
    *_in(
        "keras.src.utils.module_utils:LazyModule",
        _available="whether Keras has looked for TensorFlow",
        module="the module that Keras takes for TensorFlow",
    ),
)

_ARRAY = "jax._src.array"

_JAX = (
    *_in("jax._src.xla_bridge", backends_are_initialized="whether the devices have started"),
    # Arrays and copies, with less Python around them.
    *_in(_ARRAY, ArrayImpl="makes an array of shards, and gives arrays `.numpy()`"),
    *_in(
        f"{_ARRAY}:ArrayImpl",
        _arrays="the shards of an array",
        _committed="whether an array is tied to its device",
    ),
    *_in("jax._src.core", ShapedArray="the type of an array"),
    *_in(
        "jax.sharding:Sharding",
        _internal_device_list="the devices of a copy, as XLA takes them",
        _device_assignment="the devices of a copy",
    ),
    *_in("jax._src.lib", xla_client="XLA, as JAX calls it"),
    *_in(
        "jax._src.lib:xla_client",
        ArrayCopySemantics="makes copies copies",
        batched_copy_array_to_devices_with_sharding="copies from device to device",
        batched_device_put="copies from the host",
    ),
    # Processes.
    *_in("jax._src.distributed", global_state="who else runs, without starting devices"),
    *_in(
        "jax._src.distributed:State",
        client="the store that all processes share",
        coordinator_address="where the processes have met",
        num_processes="how many processes there are",
        process_id="which process this is",
    ),
    *_in("jax._src.clusters", ClusterEnv="what Slurm and others say of a process"),
    *_in(
        "jax._src.clusters:ClusterEnv",
        auto_detect_unset_distributed_params="what Slurm and others say of a process",
    ),
    # Traces and their options.
    *_in(
        "jax._src.core",
        AxisEnv="one of the options that a trace depends on",
        Tracer="tells traced values from arrays",
        get_opaque_trace_state="tells one trace from another",
        trace_state_clean="whether anything is traced",
    ),
    *_in(
        "jax._src.config",
        config_ext="the names of the options that a trace depends on",
        trace_context="the options that a trace depends on",
    ),
    Private(
        "trace_context_names",
        "the names of the options that a trace depends on",
        {"0": (), "0.10.1": ("jax._src.config:config_ext",)},
    ),
    *_in("jax._src.api_util", InternalFloatingPointError="raised by `jax_debug_nans`"),
    *_in(
        "jax._src.pjit",
        _fun="is left out where the attributes of a jitted function are copied",
        _jit_info="what a function was given to `jax.jit` with",
    ),
    *_in(
        "jax._src.pjit:PjitInfo",
        compiler_options_kvs="options of XLA given to `jax.jit`",
        donate_argnums="arguments given away",
        in_shardings_leaves="shardings given to `jax.jit`",
        out_shardings_leaves="shardings given to `jax.jit`",
        static_argnames="static arguments",
        static_argnums="static arguments",
    ),
    # Programs, taken apart and put together.
    *_in(
        "jax.extend.core",
        ClosedJaxpr="a program with its constants",
        Jaxpr="a program",
        Literal="a number written into a program",
        Var="a value in a program",
        jaxpr_as_fun="runs a program",
    ),
    *_in("jax.interpreters.partial_eval", dce_jaxpr="removes what is not used"),
    *_in("jax.api_util", debug_info="what a new program must carry"),
    *_in("jax._src.core:DebugInfo", result_paths="is one for each result"),
    # Executables.
    *_in(
        "jax._src.compilation_cache",
        _cache="where executables are kept",
        _cache_initialized="whether JAX has looked for its cache",
        _cache_initialized_mutex="guards the two",
        decompress_executable="reads what is kept of an executable",
        extract_executable_and_time="reads what is kept of an executable",
    ),
    *_in("jax._src.compiler", get_compile_options="runs an executable on other devices"),
    *_in("jaxlib.version", __version__="the version of the compiler"),
    *_in(
        "jax.experimental.serialize_executable",
        _JaxPjrtPickler="writes executables",
        _JaxPjrtUnpickler="reads executables",
    ),
    *_in(
        "jax.stages:Compiled",
        _executable="what runs",
        _no_kwargs="how an executable is called",
        _params="constants beside an executable",
    ),
    *_in("jax._src.stages:CompiledCallParams", const_args="constants beside an executable"),
    *_in(
        "jax._src.interpreters.pxla:MeshExecutable",
        _kept_var_idx="the arguments that reach XLA",
        _unloaded_executable="an executable as it is written",
    ),
    *_in("jax.stages:Lowered", _lowering="the arguments that reach XLA"),
)

NAMES = {"keras": _KERAS, "jax": _JAX}
