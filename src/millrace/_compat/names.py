"""All private names of Keras and JAX that millrace uses, with their places and purposes.

A place is written `module:class`, or `module` alone. `versions.py` looks for all of them when
millrace is imported; the tests compare the table with what this package uses. An attribute that is
read off an object is listed under its class, an attribute of functions under the module that sets
it. A name that has moved has a place for each version from which on it is there; `()` stands for a
version without the name, which needs none.
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
        use: its purpose in millrace.
        places: the versions from which on it is in these places. Where there are several, the
            library looks it up in each of them.
    """

    name: str
    use: str
    places: Mapping[str, tuple[str, ...]]


def _in(*places: str, **uses: str) -> tuple[Private, ...]:
    """Names that are in the same place in all versions."""
    return tuple(Private(name, use, {"0": places}) for name, use in uses.items())


def _since(version: str, place: str, **uses: str) -> tuple[Private, ...]:
    """Names that are there from a version on, and not needed before."""
    return tuple(Private(name, use, {"0": (), version: (place,)}) for name, use in uses.items())


_DATA = "keras.src.trainers.data_adapters"
_STATE = "keras.src.backend.common.global_state"
_TRAINER = "keras.src.backend.jax.trainer"
_BACKEND = {
    "0": ("keras.src.backend.jax.core",),
    "3.16": ("keras.src.backend.jax.ops.core", "keras.src.backend.jax.ops"),
}

_KERAS = (
    # What a model calls, and in which order.
    *_in("keras.src.backend.common.masking", get_keras_mask="the mask of a tensor"),
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
        arguments="the arguments of a call",
        input_tensors="the values among the arguments of a call",
        is_input="tells inputs from calls",
        operation="the layer or operation of a call",
    ),
    *_in("keras.src.ops.operation", Operation="the base of layers; it notes its stage"),
    *_in("keras.src.ops.operation:Operation", _inbound_nodes="the calls of an operation"),
    *_in("keras:Layer", _remat_mode="the mode in which a layer is recomputed"),
    *_in(
        "keras.layers:BatchNormalization",
        _moments="the statistics of a batch, which several replicas may share",
    ),
    *_in("keras:Layer", _flatten_layers="the layers inside a layer"),
    *_in("keras:Layer", _call_has_training_arg="whether a `call` takes `training`"),
    *_in(
        "keras.src.ops.symbolic_arguments:SymbolicArguments",
        args="the arguments of a call in a graph",
        kwargs="the keyword arguments of a call in a graph",
    ),
    *_in("keras.src.ops.node:KerasHistory", node_index="the call that made a value"),
    *_in(
        "keras.src.backend",
        compute_output_spec="runs a model on shapes",
        in_stateless_scope="whether a model is running",
    ),
    *_in(
        "keras.src.random.seed_generator",
        GLOBAL_SEED_GENERATOR="the generator of random numbers without a seed, for checkpoints",
    ),
    *_in(
        _STATE,
        get_global_attribute="which scopes are open, and which layer is running",
        set_global_attribute="leaves a scope while an optimizer is made",
    ),
    *_in(
        "keras.src.backend.common.stateless_scope",
        get_stateless_scope="the scope from which variables are read",
    ),
    *_in(
        "keras.src.backend.common.symbolic_scope",
        in_symbolic_scope="whether layers run on shapes only",
    ),
    *_in(
        "keras.src.losses.loss",
        reduce_weighted_values="the number that a loss divides by, for parts of a batch",
    ),
    *_in(
        "keras:Variable",
        _deferred_initialize="variables of models that are described have no values",
        _direct_assign="nor are any assigned to them",
        _dtype="whether a value needs no conversion",
        _initialize_with_initializer="variables of models that are described have no values",
        _initializer="stands for the value that such a variable does not have",
        _layout="whether a distribution has sharded a variable",
        _shape="whether a value needs no conversion",
        _value="the value of a variable outside of every scope",
    ),
    *_in(
        "keras.src.saving.saving_lib",
        _raise_loading_failure="the errors of objects that `load_model` could not load",
    ),
    *_in(
        "keras.src.trainers.trainer",
        model_supports_jit="whether `compile` chooses a compiled step",
    ),
    *_in(
        "keras.src.layers.preprocessing.image_preprocessing.base_image_preprocessing_layer",
        BaseImagePreprocessingLayer="layers that Keras does not compile, though JAX traces them",
    ),
    # The loops.
    *_in("keras.src.utils.python_utils", pythonify_logs="logs as Python's numbers"),
    *_in(_TRAINER, JAXEpochIterator="the source of batches of fit, evaluate and predict"),
    *_in(
        "keras.src.trainers.epoch_iterator:EpochIterator",
        _current_iterator="the pass through the data that is running",
        _enumerate_iterator="yields the executions of an epoch",
        _interrupted_warning="says that the data ended early",
        _num_batches="the length of a pass",
        _steps_seen="the position in a pass",
        data_adapter="the source of batches",
        steps_per_epoch="the length of an epoch",
    ),
    *_in(
        "keras:Model",
        _compile_config="the arguments of `compile`",
        _compile_loss="whether a model was compiled anew",
        _compile_metrics="whether a model was compiled anew",
        _eval_epoch_iterator="the data of the validation of a running fit",
        _flatten_metrics_in_order="the order in which `train_on_batch` returns metrics",
        _get_metrics_result_or_logs="the logs that fit and evaluate report",
        _initial_epoch="the epoch with which `BackupAndRestore` continues",
        _jax_state="the values of a running loop",
        _jax_state_synced="whether the variables have the values of a running loop",
        _symbolic_build="makes the variables that fit makes",
        _update_metrics_variables="the metrics of a step",
        compute_loss_and_updates="the loss of a step, to be differentiated",
    ),
    *_since(
        "3.16",
        "keras:Model",
        state_sync="brings the values of a running loop back to the variables",
        _maybe_symbolic_build="checks the batch from which fit makes variables",
        _get_unbuilt_components="whether fit makes variables",
    ),
    Private(
        "jax_state_sync",
        "brings the values of a running loop back to the variables",
        {"0": ("keras:Model",), "3.16": ()},
    ),
    # Data.
    *_in(_DATA, get_data_adapter="the data adapter of `x`"),
    *_in(f"{_DATA}.array_data_adapter", ArrayDataAdapter="tells arrays from other data"),
    *_in(f"{_DATA}.data_adapter", DataAdapter="the base of data sets of other kinds"),
    *_in(f"{_DATA}.tf_dataset_adapter:TFDatasetAdapter", _dataset="whether a tf.data never ends"),
    *_in(f"{_DATA}.py_dataset_adapter:PyDatasetAdapter", py_dataset="a data set of an unknown end"),
    *_in(
        f"{_DATA}.array_data_adapter:ArrayDataAdapter",
        _get_iterator="skips batches of arrays without slicing them",
    ),
    *_in(
        f"{_DATA}.torch_data_loader_adapter:TorchDataLoaderAdapter",
        _dataloader="the generators and the state of a loader",
    ),
    *_in(
        f"{_DATA}.generator_data_adapter:GeneratorDataAdapter",
        _first_batches="tells generators apart",
    ),
    *_in(
        f"{_DATA}.grain_dataset_adapter:GrainDatasetAdapter",
        _output_signature="tells data sets of Grain apart",
    ),
    *_since(
        "3.16",
        f"{_DATA}.array_data_adapter:ArrayDataAdapter",
        _epoch="the number that decides the order of rows",
    ),
    *_since(
        "3.16",
        f"{_DATA}.data_adapter_utils",
        super_batch_iterator="gives Keras's own scan several steps at a time",
    ),
    # Optimizers.
    *_in(
        "keras.optimizers:Optimizer",
        _exclude_from_weight_decay="the ids of variables without weight decay",
        _exclude_from_weight_decay_pattern="the names of variables without weight decay",
        _trainable_variables="the order of an optimizer's variables",
    ),
)

_ARRAY = "jax._src.array"

_JAX = (
    *_in("jax.extend.backend", clear_backends="ends the devices, for more of them to start"),
    *_in(
        "jax._src.xla_bridge",
        _backends="gives JAX its devices back, if something still refers to them",
        _default_backend="likewise",
        _topology_factories="whether the compiler for GPUs has started",
        backends="which platforms have started",
        backends_are_initialized="whether the devices have started",
    ),
    # Arrays and copies, with less Python around them.
    *_in(_ARRAY, ArrayImpl="makes an array of shards"),
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
        ArrayCopySemantics="requires that copies are made",
        batched_copy_array_to_devices_with_sharding="copies from device to device",
        batched_device_put="copies from the host",
    ),
    # Processes.
    *_in("jax._src.distributed", global_state="the processes of a run, without starting devices"),
    *_in(
        "jax._src.distributed:State",
        client="the store that all processes share",
        coordinator_address="where the processes have met",
        num_processes="the number of processes",
        process_id="the number of this process",
    ),
    *_in("jax._src.clusters", ClusterEnv="the facts that Slurm and others give about a process"),
    *_in(
        "jax._src.clusters:ClusterEnv",
        auto_detect_unset_distributed_params="the facts that Slurm and others give about a process",
    ),
    # Traces and their options.
    *_in(
        "jax._src.core",
        AxisEnv="one of the options that a trace depends on",
        EvalTrace="where no trace is left around a trace",
        Tracer="tells traced values from arrays",
        get_opaque_trace_state="tells one trace from another",
        trace_ctx="the current trace",
        trace_state_clean="whether anything is traced",
    ),
    *_in(
        "jax._src.core:Tracer",
        _line_info="the line that computed a value",
        _trace="the trace that a value is part of",
    ),
    *_in(
        "jax._src.interpreters.partial_eval:DynamicJaxprTracer",
        _debug_info="the function whose trace a value is part of",
    ),
    *_in("jax.stages:Traced", _consts="values of other traces that a function uses"),
    *_in(
        "jax._src.config",
        config_ext="the names of the options that a trace depends on",
        trace_context="the options that a trace depends on",
    ),
    *_since(
        "0.10.1",
        "jax._src.config:config_ext",
        trace_context_names="the names of the options that a trace depends on",
    ),
    *_in("jax._src.api_util", InternalFloatingPointError="raised by `jax_debug_nans`"),
    *_in(
        "jax._src.pjit",
        _fun="is left out where the attributes of a jitted function are copied",
        _jit_info="the options of `jax.jit`",
    ),
    *_in(
        "jax._src.pjit:PjitInfo",
        compiler_options_kvs="options of XLA given to `jax.jit`",
        donate_argnums="donated arguments",
        in_shardings_leaves="shardings given to `jax.jit`",
        out_shardings_leaves="shardings given to `jax.jit`",
        static_argnames="static arguments",
        static_argnums="static arguments",
    ),
    # Where `jax.grad` and `jax.value_and_grad` differentiate.
    *_in("jax._src", api="where gradients are taken"),
    Private("_vjp", "takes gradients", {"0": ("jax._src.api",), "0.10.2": ()}),
    # Programs, taken apart and put together.
    *_in(
        "jax.extend.core",
        ClosedJaxpr="a program with its constants",
        Jaxpr="a program",
        Literal="a number written into a program",
        Primitive="the equation that stands for work of the host",
        Var="a value in a program",
        jaxpr_as_fun="runs a program",
    ),
    *_in("jax.interpreters.partial_eval", dce_jaxpr="removes unused equations"),
    *_in("jax.interpreters.ad", primitive_jvps="refuses work of the host in a gradient"),
    *_in("jax.interpreters.batching", primitive_batchers="refuses it in `jax.vmap`"),
    *_in("jax.api_util", debug_info="the debugging facts of a new program"),
    *_in("jax._src.core:DebugInfo", result_paths="the names of results"),
    # Executables.
    *_in(
        "jax._src.compilation_cache",
        _cache="the cache of executables",
        _cache_initialized="whether JAX has looked for its cache",
        _cache_initialized_mutex="guards the two",
        decompress_executable="reads an entry of the cache",
        extract_executable_and_time="reads an entry of the cache",
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
    *_in(
        "jax._src.interpreters.pxla:MeshComputation",
        _device_list="the devices of a program that a target's compiler has refused",
    ),
)

NAMES = {"keras": _KERAS, "jax": _JAX}
