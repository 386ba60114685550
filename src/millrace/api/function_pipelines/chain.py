"""The functions of a pipeline in the order of their stages, with arguments and results.

    inputs, element ──> s0 ──> s1a ──> s2 ──> outputs
                          └──> s1b ──┘          a list of functions: they run at the same time

The first function takes the inputs, followed by one element of the infeed: the items of a tuple by
position, those of a dict by name. Each later one takes the results of the one before. The members
of a list all take the same arguments, and their results are passed on in the order of the list.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeAlias

import jax
import keras

from millrace.api.own_loops.body import arguments_of, misfit, plain_name
from millrace.base.options import default_devices, whole_number
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.errors import DTypeError, LoopError, OptionError, PlanError

StageFunction: TypeAlias = Callable[..., object]
StageFunctions: TypeAlias = Sequence[StageFunction | Sequence[StageFunction]]
DeviceMapping: TypeAlias = Sequence[int | Sequence[int]]


@dataclass(frozen=True, slots=True)
class FunctionChain:
    """The functions of a pipeline, and for each its level, from 0, and its device.

    Functions of the same level run at the same time.
    """

    functions: tuple[StageFunction, ...]
    levels: tuple[int, ...]
    mapping: tuple[int, ...]

    @property
    def stages(self) -> tuple[int, ...]:
        """The level of each stage.

        Loss and outfeed need the outputs of all functions of the last level: if there are several,
        they are one more stage.
        """
        last = self.levels[-1]
        return (*self.levels, last + 1) if self.levels.count(last) > 1 else self.levels

    @property
    def devices(self) -> tuple[int, ...]:
        """The device of each stage."""
        return (*self.mapping, self.mapping[-1])[: len(self.stages)]

    def on(self, level: int) -> list[StageFunction]:
        """Returns the functions of a level."""
        return [f for f, own in zip(self.functions, self.levels, strict=True) if own == level]

    @property
    def is_concurrent(self) -> bool:
        """Whether some functions run at the same time."""
        return len(set(self.levels)) < len(self.levels)


def make_chain(
    stages: StageFunctions,
    device_mapping: DeviceMapping | None,
    schedule: object = None,
    batch_serialization: int = 1,
) -> FunctionChain:
    """Checks the user's stages and their devices, and makes a chain of them.

    Args:
        stages: functions, or lists of functions that run at the same time.
        device_mapping: index of the device of each function, in the structure of `stages`. None
            means the default of the schedule.
        schedule: of the pipeline, as the user chose it.
        batch_serialization: micro-batches that a stage runs before the next stage starts.

    Raises:
        DTypeError: if `stages` or `device_mapping` is not a list.
        OptionError: for fewer than two stages, or a stage that is not a function.
        PlanError: if stages run at the same time and there is no `device_mapping`.
    """
    if not isinstance(stages, list | tuple):
        raise DTypeError(
            "The stages of a pipeline are a list of functions. Received: "
            f"{stages!r} of type {type(stages).__name__}."
        )
    if len(stages) < 2:
        raise OptionError(
            f"A pipeline has at least two stages. Received: {len(stages)}. Cut the computation "
            "into more functions, or run it with millrace.repeat()."
        )
    members = [_members(k, stage) for k, stage in enumerate(stages)]
    functions = tuple(function for each in members for function in each)
    levels = tuple(level for level, each in enumerate(members) for _ in each)
    default = default_devices(schedule, len(stages), batch_serialization)
    return FunctionChain(functions, levels, _mapping(stages, members, device_mapping, default))


def _members(number: int, stage: StageFunction | Sequence[StageFunction]) -> list[StageFunction]:
    members: list[Any] = list(stage) if isinstance(stage, list | tuple) else [stage]
    if not members or not all(callable(function) for function in members):
        raise OptionError(
            f"Stage {number} of a pipeline is a function, or a list of functions that run at the "
            f"same time; lists are not nested. Received: {stage!r}."
        )
    return members


def _mapping(
    stages: StageFunctions,
    members: Sequence[Sequence[StageFunction]],
    device_mapping: DeviceMapping | None,
    default: tuple[int, ...],
) -> tuple[int, ...]:
    if device_mapping is None:
        if any(isinstance(stage, list | tuple) for stage in stages):
            raise PlanError(
                "A pipeline with stages that run at the same time needs device_mapping, with a "
                f"list for each of them. Set device_mapping={_example(members)}, for example."
            )
        return default
    if not isinstance(device_mapping, list | tuple):
        raise DTypeError(
            "device_mapping is a list with the device of each stage. Received: "
            f"{device_mapping!r} of type {type(device_mapping).__name__}. Set "
            f"device_mapping={_example(members)}, for example."
        )
    if len(device_mapping) != len(stages):
        raise OptionError(
            f"device_mapping={list(device_mapping)} has {len(device_mapping)} entries, and the "
            f"pipeline has {len(stages)} stages. Set device_mapping={_example(members)}, for "
            "example."
        )
    mapping: list[int] = []
    for number, (stage, entry) in enumerate(zip(stages, device_mapping, strict=True)):
        expected = len(stage) if isinstance(stage, list | tuple) else None
        if expected != (len(entry) if isinstance(entry, list | tuple) else None):
            kind = "one function" if expected is None else f"a list of {expected} functions"
            raise OptionError(
                f"device_mapping[{number}]={entry!r} does not fit stage {number}, which is {kind}. "
                f"Set device_mapping={_example(members)}, for example."
            )
        for device in entry if isinstance(entry, list | tuple) else [entry]:
            mapping.append(whole_number(f"device_mapping[{number}]", device, 0))
    return tuple(mapping)


def _example(members: Sequence[Sequence[StageFunction]]) -> list[int | list[int]]:
    devices = iter(range(sum(map(len, members))))
    return [[next(devices) for _ in each] if len(each) > 1 else next(devices) for each in members]


def next_arguments(outputs: Sequence[object]) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of the next stage, given the results of the functions before it."""
    if len(outputs) == 1 and isinstance(outputs[0], dict):
        return [], dict(outputs[0])
    return [value for output in outputs for value in as_list(output)], {}


def as_list(output: object) -> list[Any]:
    """Returns the result of a stage as a list, empty for None."""
    if isinstance(output, tuple | list):
        return list(output)
    return [] if output is None else [output]


def run_chain(
    chain: FunctionChain,
    inputs: Sequence[ArrayTree],
    element: "ArrayTree | SpecTree",
    around: Callable[[int], AbstractContextManager[Any]] = lambda stage: nullcontext(),
) -> list[Any]:
    """Calls the functions of a chain, one after the other.

    Args:
        chain: the functions.
        inputs: of the run.
        element: of the infeed; None without one.
        around: makes the context manager for the call of a stage.

    Returns:
        The results of the functions of the last level.

    Raises:
        LoopError: if a function does not fit its arguments.
    """
    args, kwargs = arguments_of(inputs, element)
    stage, outputs = 0, []
    source = "inputs and one element of the infeed"
    for level in range(max(chain.levels) + 1):
        outputs = []
        for function in chain.on(level):
            with around(stage):
                role = f"Stage {level} of a pipeline"
                outputs.append(call_checked(function, args, kwargs, role, source))
            stage += 1
        args, kwargs = next_arguments(outputs)
        source = "the stage before it"
    return outputs


def call_checked(
    function: StageFunction,
    args: Sequence[object],
    kwargs: dict[str, Any],
    role: str,
    source: str,
) -> Any:
    """Calls a function of a pipeline.

    Args:
        function: of the user.
        args: by position.
        kwargs: by name.
        role: of the function, for messages, such as "Stage 1 of a pipeline".
        source: of its arguments, for messages, such as "the stage before it".

    Raises:
        LoopError: if the function cannot be called with these arguments.
    """
    if (found := misfit(function, args, kwargs)) is not None:
        signature, error = found
        names = f", and {sorted(kwargs)} by name" if kwargs else ""
        raise LoopError(
            f"{role}, {plain_name(function)}{signature}, does not take the values from {source}: "
            f"{len(args)} values by position{names} ({error}). A value that a later stage needs "
            "passes through all stages before it: return it from each."
        )
    return function(*args, **kwargs)


def check_captures(functions: Sequence[StageFunction]) -> None:
    """Refuses functions that close over arrays, which would be constants of their programs.

    Raises:
        OptionError: naming the array.
    """
    for number, function in enumerate(functions):
        if not isinstance(function, FunctionType):
            continue
        captured = inspect.getclosurevars(function)
        for name, value in {**captured.globals, **captured.nonlocals}.items():
            if isinstance(value, jax.Array) and not isinstance(value, keras.Variable):
                raise OptionError(
                    f"Stage {number} of a pipeline, {plain_name(function)}, uses the array "
                    f"{name!r} of shape {list(value.shape)} from outside, but each stage gets its "
                    "values from the one before. Pass it in inputs, put it into every element of "
                    "the infeed, or make it a keras.Variable."
                )
