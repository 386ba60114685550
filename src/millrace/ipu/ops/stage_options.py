"""Compiler options of single stages.

PipelineStageOptions(convolution_options, matmul_options, slice_options)
    options of XLA by their names   -> forward_ | backward_propagation_stages_compiler_options
    options of Poplar               -> none: a warning says so once
"""

from typing import Any

from millrace.errors import DTypeError, OptionError
from millrace.ipu.inert import inert


class PipelineStageOptions:
    """Options for the convolutions, matrix products and slices of one stage."""

    def __init__(
        self,
        convolution_options: dict[str, Any] | None = None,
        matmul_options: dict[str, Any] | None = None,
        slice_options: dict[str, Any] | None = None,
    ):
        given = {
            "convolution_options": convolution_options,
            "matmul_options": matmul_options,
            "slice_options": slice_options,
        }
        for name, value in given.items():
            if value is not None and not isinstance(value, dict):
                raise DTypeError(
                    f"{name} of PipelineStageOptions is a dict. Received: {value!r} of type "
                    f"{type(value).__name__}. Set {{}} for none."
                )
        self.convolution_options = convolution_options or {}
        self.matmul_options = matmul_options or {}
        self.slice_options = slice_options or {}

    def compiler_options(self) -> dict[str, Any]:
        """Returns those that XLA knows."""
        given = {**self.convolution_options, **self.matmul_options, **self.slice_options}
        for name in given:
            if not name.startswith("xla_"):
                inert(
                    f"{name!r} in PipelineStageOptions",
                    "It is an option of Poplar. Options of XLA, such as "
                    "'xla_cpu_enable_fast_math', are given to the compiler of that stage.",
                )
        return {name: value for name, value in given.items() if name.startswith("xla_")}


def options_of_stages(name: str, given: Any, num_stages: int) -> list[dict[str, Any]] | None:
    """Returns the compiler options of each stage.

    Raises:
        TypeError: if it is no list, or not of `PipelineStageOptions`.
        ValueError: for another number than there are stages.
    """
    if given is None:
        return None
    if not isinstance(given, list | tuple):
        raise DTypeError(f"{name} is a list of PipelineStageOptions. Received: {given!r}.")
    if len(given) != num_stages:
        raise OptionError(
            f"{name} has {len(given)} entries, and the pipeline has {num_stages} stages. Give "
            "one PipelineStageOptions for each."
        )
    return [options_of_update(f"{name}[{k}]", each) or {} for k, each in enumerate(given)]


def options_of_update(name: str, given: Any) -> dict[str, Any] | None:
    """Returns the compiler options of one `PipelineStageOptions`, None for None.

    Raises:
        TypeError: if it is none.
    """
    if given is None:
        return None
    if not isinstance(given, PipelineStageOptions):
        raise DTypeError(
            f"{name} is a PipelineStageOptions. Received: {given!r} of type {type(given).__name__}."
        )
    return given.compiler_options()
