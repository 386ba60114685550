"""The functions of `utils` that made a configuration before there was `IPUConfig`.

    opts = utils.create_ipu_config()          IPUConfig()
    opts = utils.auto_select_ipus(opts, 2)    opts.auto_select_ipus = 2
    utils.configure_ipu_system(opts)          opts.configure_ipu_system()
    utils.set_matmul_options(opts, ...)       without effect, as all options of Poplar

They were in releases up to 2.3. An argument that is None leaves its option as it was. What made a
profile has no effect: POPLAR_ENGINE_OPTIONS asks for one.
"""

import enum
from collections.abc import Callable

from millrace.errors import OptionError
from millrace.extend import refuse_unknown
from millrace_ipu.ipu.config import DeviceConnectionType, IPUConfig
from millrace_ipu.ipu.config.categories import FEEDS, NUMBERS, XLA
from millrace_ipu.ipu.no_effect import warn_no_effect
from millrace_ipu.ipu.release import uses_old_names

_PROFILE = """Set POPLAR_ENGINE_OPTIONS='{"autoReport.all":"true"}'."""
_OF_REPORTS = ("profile_execution", "report_directory", "report_every_nth_execution")
_OF_COMPILER = (
    "always_rearrange_copies_on_the_host", "disable_graph_convolution_caching",
    "disable_graph_outlining", "enable_experimental_remote_buffer_embedding",
    "enable_ipu_events", "enable_poplar_serialized_graph", "enable_prng_stability",
    "max_cross_replica_sum_buffer_size", "max_inter_ipu_copies_buffer_size",
    "max_reduce_scatter_buffer_size", "max_report_size", "max_scheduler_lookahead_depth",
    "max_scheduler_search_space_size", "merge_infeed_io_copies", "num_ipus",
    "prefetch_data_streams", "retain_control_dependencies", "scheduler_selection",
    "selection_order", "tiles_per_ipu", "use_poplar_cbor_report", "use_poplar_text_report",
)  # fmt: skip
# Setters of options that have no effect in an `IPUConfig` either.
_WITHOUT_EFFECT = {
    "set_compilation_options": XLA,
    "set_convolution_options": XLA,
    "set_floating_point_behaviour_options": NUMBERS,
    "set_gcl_options": XLA,
    "set_io_tile_options": FEEDS,
    "set_ipu_model_options": XLA,
    "set_matmul_options": XLA,
    "set_norm_options": XLA,
    "set_optimization_options": XLA,
    "set_pooling_options": XLA,
    "set_report_options": _PROFILE,
    "set_serialization_options": "Call strategy.export_executables().",
}


# The parts of an execution's profile.
ExecutionProfileType = enum.Enum(
    "ExecutionProfileType", "NO_PROFILE DEVICE_PROFILE IPU_PROFILE TILE_PROFILE", start=0
)


def create_ipu_config(profiling: bool = False, **options: object) -> IPUConfig:
    """Returns a configuration.

    Args:
        profiling: without effect, as all options.
        **options: those of the original function.

    Raises:
        OptionError: for an unknown option.
    """
    uses_old_names()
    known = ("profiling", *_OF_REPORTS, *_OF_COMPILER)
    refuse_unknown("create_ipu_config", [name for name in options if name not in known], known, {})
    for name, value in {"profiling": profiling, **options}.items():
        if value and value is not ExecutionProfileType.NO_PROFILE:
            advice = XLA if name in _OF_COMPILER else _PROFILE
            warn_no_effect(f"create_ipu_config({name}=...)", advice)
    return IPUConfig()


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


def set_ipu_connection_type(
    opts: IPUConfig,
    connection_type: DeviceConnectionType | None = None,
    ipu_version: object = None,
    enable_remote_buffers: bool | None = None,
) -> IPUConfig:
    """Sets options of the connection; PRE_COMPILE compiles programs and does not run them."""
    values = {"type": connection_type, "enable_remote_buffers": enable_remote_buffers}
    return _set(opts, {f"device_connection.{k}": v for k, v in values.items()})


def set_experimental_multi_replica_distribution_options(
    opts: IPUConfig, process_count: int, process_index: int
) -> IPUConfig:
    """Sets the number of processes and the index of this one."""
    values = {"process_count": process_count, "process_index": process_index}
    path = "experimental.multi_replica_distribution"
    return _set(opts, {f"{path}.{k}": v for k, v in values.items()})


def _without_effect(name: str, advice: str) -> Callable[..., IPUConfig]:
    def set_options(opts: IPUConfig, *_: object, **__: object) -> IPUConfig:
        warn_no_effect(name, advice)
        return _set(opts, {})

    set_options.__name__ = set_options.__qualname__ = name
    return set_options


SETTERS = {name: _without_effect(name, advice) for name, advice in _WITHOUT_EFFECT.items()}


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
