"""The functions of `utils` that made a configuration before there was `IPUConfig`.

    opts = utils.create_ipu_config()          IPUConfig()
    opts = utils.auto_select_ipus(opts, 2)    opts.auto_select_ipus = 2
    utils.configure_ipu_system(opts)          opts.configure_ipu_system()

They were in releases up to 2.3. An argument that is None leaves its option as it was. A profile is
made where it has a directory: `create_ipu_config(profiling=True, report_directory="reports")` asks
for the reports that POPLAR_ENGINE_OPTIONS asks for, in programs that are compiled afterwards.
"""

import enum
import pathlib
from collections.abc import Mapping

from millrace.errors import OptionError
from millrace.extend import refuse_unknown
from millrace_ipu.ipu.config import DeviceConnectionType, IPUConfig
from millrace_ipu.ipu.engine_options import AutoReport, use_report
from millrace_ipu.ipu.no_effect import warn_no_effect
from millrace_ipu.ipu.release import uses_old_names

_PROFILE = (
    "Set create_ipu_config(profiling=True, report_directory=...), or "
    """POPLAR_ENGINE_OPTIONS='{"autoReport.all":"true"}'."""
)
_OPTIONS = {
    "selection_order": "selection_order",
    "always_rearrange_copies_on_the_host": "experimental.always_rearrange_copies_on_the_host",
    "enable_experimental_remote_buffer_embedding": "experimental.enable_remote_buffer_embedding",
    "enable_prng_stability": "experimental.enable_prng_stability",
    "merge_infeed_io_copies": "optimizations.merge_infeed_io_copies",
    "max_cross_replica_sum_buffer_size": "optimizations.maximum_cross_replica_sum_buffer_size",
    "max_reduce_scatter_buffer_size": "optimizations.maximum_reduce_scatter_buffer_size",
    "max_inter_ipu_copies_buffer_size": "optimizations.maximum_inter_ipu_copies_buffer_size",
    "max_scheduler_lookahead_depth": "scheduling.maximum_scheduler_lookahead_depth",
    "max_scheduler_search_space_size": "scheduling.maximum_scheduler_search_space_size",
    "prefetch_data_streams": "optimizations.prefetch_data_streams",
}
_OF_REPORTS = ("profile_execution", "report_directory", "report_every_nth_execution")
_NO_EFFECT = (
    "enable_ipu_events", "use_poplar_text_report", "use_poplar_cbor_report",
    "enable_poplar_serialized_graph", "max_report_size", "num_ipus", "tiles_per_ipu",
    "scheduler_selection", "disable_graph_convolution_caching", "disable_graph_outlining",
    "retain_control_dependencies",
)  # fmt: skip
_EXECUTIONS = 2  # traced ones, as by POPLAR_ENGINE_OPTIONS


class ExecutionProfileType(enum.Enum):
    """The parts of an execution's profile: none, or tasks of device groups."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


def create_ipu_config(profiling: bool = False, **options: object) -> IPUConfig:
    """Returns a configuration.

    Args:
        profiling: whether programs leave reports in `report_directory`.
        **options: those of the original function. `report_directory` has a directory for each
            program that is compiled afterwards; `profile_execution` adds traces of two executions.

    Raises:
        OptionError: for an unknown option.
    """
    uses_old_names()
    known = ("profiling", *_OPTIONS, *_OF_REPORTS, *_NO_EFFECT)
    refuse_unknown("create_ipu_config", [name for name in options if name not in known], known, {})
    for name, value in options.items():
        if name in _NO_EFFECT and value:
            warn_no_effect(f"create_ipu_config({name}=...)", _PROFILE)
    use_report(_report(profiling, options))
    values = {_OPTIONS[name]: value for name, value in options.items() if name in _OPTIONS}
    return _set(IPUConfig(), values)


def _report(profiling: bool, options: Mapping[str, object]) -> AutoReport | None:
    """Returns the reports that a configuration asks for."""
    directory = options.get("report_directory")
    if not profiling or not directory:
        for name in ("profiling", *_OF_REPORTS):
            value = profiling if name == "profiling" else options.get(name)
            if value and value is not ExecutionProfileType.NO_PROFILE:
                warn_no_effect(f"create_ipu_config({name}=...) alone", _PROFILE)
        return None
    executes = options.get("profile_execution", ExecutionProfileType.NO_PROFILE)
    is_traced = executes not in (False, None, ExecutionProfileType.NO_PROFILE)
    path = pathlib.Path(str(directory)).expanduser()
    return AutoReport(path, _EXECUTIONS, has_execution=is_traced)


def auto_select_ipus(opts: IPUConfig, num_ipus: int | list[int]) -> IPUConfig:
    """Sets the number of devices, or that of each logical device."""
    return _set(opts, {"auto_select_ipus": num_ipus})


def select_ipus(opts: IPUConfig, indices: int | list[int]) -> IPUConfig:
    """Sets the device of each logical device."""
    return _set(opts, {"select_ipus": indices})


def set_recomputation_options(
    opts: IPUConfig, allow_recompute: bool = True, allow_stateful_recompute: object = None
) -> IPUConfig:
    """Sets `allow_recompute`."""
    return _set(opts, {"allow_recompute": allow_recompute})


def set_ipu_model_options(
    opts: IPUConfig,
    compile_ipu_code: bool = True,
    tiles_per_ipu: int | None = None,
    ipu_model_version: str | None = None,
) -> IPUConfig:
    """Sets options of the software model of a device, which have no effect."""
    values = {"compile_ipu_code": compile_ipu_code, "tiles_per_ipu": tiles_per_ipu}
    return _set(opts, {f"ipu_model.{k}": v for k, v in values.items()})


def set_floating_point_behaviour_options(
    opts: IPUConfig,
    inv: bool = True,
    div0: bool = True,
    oflo: bool = True,
    esr: bool = True,
    nanoo: bool = True,
) -> IPUConfig:
    """Sets options of floating-point exceptions."""
    values = {"inv": inv, "div0": div0, "oflo": oflo, "esr": esr, "nanoo": nanoo}
    return _set(opts, {f"floating_point_behaviour.{k}": v for k, v in values.items()})


def set_ipu_connection_type(
    opts: IPUConfig,
    connection_type: DeviceConnectionType | None = None,
    ipu_version: object = None,
    enable_remote_buffers: bool | None = None,
) -> IPUConfig:
    """Sets options of the connection; PRE_COMPILE compiles programs and does not run them."""
    values = {"type": connection_type, "enable_remote_buffers": enable_remote_buffers}
    return _set(opts, {f"device_connection.{k}": v for k, v in values.items()})


def set_io_tile_options(
    opts: IPUConfig,
    num_io_tiles: int,
    place_ops_on_io_tiles: bool | None = None,
    io_tile_available_memory_proportion: float | None = None,
) -> IPUConfig:
    """Sets options of tiles that only move data."""
    values = {
        "num_io_tiles": num_io_tiles,
        "place_ops_on_io_tiles": place_ops_on_io_tiles,
        "available_memory_proportion": io_tile_available_memory_proportion,
    }
    return _set(opts, {f"io_tiles.{k}": v for k, v in values.items()})


def set_convolution_options(
    opts: IPUConfig, convolution_options: dict[str, str] | None = None
) -> IPUConfig:
    """Sets Poplar's options of convolutions."""
    return _set(opts, {"convolutions.poplar_options": convolution_options})


def set_matmul_options(
    opts: IPUConfig, matmul_options: dict[str, str] | None = None, clear_pass_type: bool = False
) -> IPUConfig:
    """Sets Poplar's options of matrix products."""
    values = {"poplar_options": matmul_options, "clear_pass_type": clear_pass_type}
    return _set(opts, {f"matmuls.{k}": v for k, v in values.items()})


def set_pooling_options(
    opts: IPUConfig, pooling_options: dict[str, str] | None = None
) -> IPUConfig:
    """Sets Poplar's options of pooling."""
    return _set(opts, {"pooling.poplar_options": pooling_options})


def set_norm_options(opts: IPUConfig, use_stable_statistics: bool = False) -> IPUConfig:
    """Sets options of normalization."""
    return _set(opts, {"norms.use_stable_statistics": use_stable_statistics})


def set_optimization_options(
    opts: IPUConfig,
    combine_embedding_lookups: bool = False,
    combine_matmuls: bool = False,
    max_cross_replica_sum_buffer_size: int = 0,
    max_reduce_scatter_buffer_size: int = 0,
    max_inter_ipu_copies_buffer_size: int = 0,
    max_send_recv_cluster_size: int = 0,
    gather_simplifier: bool = False,
    **options: object,
) -> IPUConfig:
    """Sets options of the compiler's optimizations."""
    values = {
        "combine_embedding_lookups": combine_embedding_lookups,
        "combine_matmuls": combine_matmuls,
        "maximum_cross_replica_sum_buffer_size": max_cross_replica_sum_buffer_size,
        "maximum_reduce_scatter_buffer_size": max_reduce_scatter_buffer_size,
        "maximum_inter_ipu_copies_buffer_size": max_inter_ipu_copies_buffer_size,
        "maximum_send_recv_cluster_size": max_send_recv_cluster_size,
        **options,
    }
    return _set(opts, {f"optimizations.{k}": v for k, v in values.items()})


def set_compilation_options(
    opts: IPUConfig, compilation_options: dict[str, str] | None = None
) -> IPUConfig:
    """Sets options of Poplar's compiler."""
    return _set(opts, {"compilation_poplar_options": compilation_options})


def set_serialization_options(opts: IPUConfig, output_folder: str = "") -> IPUConfig:
    """Sets the directory for programs."""
    return _set(opts, {"serialization_output_folder": output_folder})


def set_gcl_options(
    opts: IPUConfig, num_io_tiles: int = 0, gcl_options: dict[str, str] | None = None
) -> IPUConfig:
    """Sets options of collectives."""
    values: dict[str, object] = {"gcl_poplar_options": gcl_options}
    return _set(opts, {"io_tiles.num_io_tiles": num_io_tiles, **values})


def set_report_options(
    opts: IPUConfig,
    report_options: object = None,
    graph_options: object = None,
    execution_options: object = None,
) -> IPUConfig:
    """Has no effect: its options are of Poplar's text reports."""
    warn_no_effect("set_report_options", _PROFILE)
    return _set(opts, {})


def set_experimental_multi_replica_distribution_options(
    opts: IPUConfig, process_count: int, process_index: int
) -> IPUConfig:
    """Sets the number of processes and the index of this one."""
    values = {"process_count": process_count, "process_index": process_index}
    path = "experimental.multi_replica_distribution"
    return _set(opts, {f"{path}.{k}": v for k, v in values.items()})


def _set(opts: IPUConfig, values: dict[str, object]) -> IPUConfig:
    """Sets the options at some paths to values, but None, and returns the configuration."""
    if not isinstance(opts, IPUConfig):
        raise OptionError(
            f"The first argument is the result of create_ipu_config(). Received: {opts!r}. Set "
            "opts = ipu.utils.create_ipu_config(), or opts = ipu.config.IPUConfig()."
        )
    for path, value in values.items():
        *categories, name = path.split(".")
        owner: object = opts
        for category in categories:
            owner = getattr(owner, category)
        if value is not None:
            setattr(owner, name, value)
    return opts
