"""Functions in the order of their stages: what each is called with, and what it hands on.

    inputs, element ──> s0 ──> s1a ──> s2 ──> outputs
                          └──> s1b ──┘          a list of functions: they run at the same time

The first one takes the inputs and then what an element of the infeed has: the items of a tuple,
those of a dict by name. Each later one takes exactly what the one before returned. The members of
a list all take the same, and what they return is handed on one after the other.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import jax
import keras

from millrace.errors import DTypeError, LoopError, OptionError, PlanError
from millrace.options import whole_number

StageFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FunctionChain:
    """The functions of a pipeline, the stage of the schedule of each, and its device."""

    functions: tuple[StageFunction, ...]
    levels: tuple[int, ...]
    mapping: tuple[int, ...]

    @property
    def stages(self) -> tuple[int, ...]:
        """The stage of the schedule of each stage.

        What follows the functions needs the outputs of all: where several come last, it is one
        more stage.
        """
        last = self.levels[-1]
        return (*self.levels, last + 1) if self.levels.count(last) > 1 else self.levels

    @property
    def devices(self) -> tuple[int, ...]:
        """The device of each stage."""
        return (*self.mapping, self.mapping[-1])[: len(self.stages)]

    def on(self, level: int) -> list[StageFunction]:
        """Returns the functions that are one stage of the schedule."""
        return [f for f, own in zip(self.functions, self.levels, strict=True) if own == level]

    @property
    def is_concurrent(self) -> bool:
        """Whether some functions run at the same time."""
        return len(set(self.levels)) < len(self.levels)


def make_chain(stages: Any, device_mapping: Any, on_one_device: bool = False) -> FunctionChain:
    """Reads what a user gives for the stages of a pipeline and their devices.

    Args:
        stages: functions, or lists of functions that run at the same time.
        device_mapping: the device of each, in the same structure; None is one each.
        on_one_device: whether None is device 0 for all.

    Raises:
        DTypeError: if one of the two is no list.
        OptionError: for fewer than two stages, or what is no function.
        PlanError: if the two do not fit together.
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
    return FunctionChain(
        functions, levels, _mapping(stages, members, device_mapping, on_one_device)
    )


def _members(number: int, stage: Any) -> list[StageFunction]:
    members = list(stage) if isinstance(stage, list | tuple) else [stage]
    if not members or not all(callable(function) for function in members):
        raise OptionError(
            f"Stage {number} of a pipeline is a function, or a list of functions that run at the "
            f"same time; lists are not nested. Received: {stage!r}."
        )
    return members


def _mapping(
    stages: Sequence[Any], members: Sequence[Sequence[Any]], given: Any, on_one_device: bool
) -> tuple[int, ...]:
    if given is None:
        if any(isinstance(stage, list | tuple) for stage in stages):
            raise PlanError(
                "A pipeline with stages that run at the same time needs device_mapping, with a "
                f"list for each of them. Set one such as {_example(members)}."
            )
        return (0,) * len(stages) if on_one_device else tuple(range(len(stages)))
    if not isinstance(given, list | tuple):
        raise DTypeError(
            "device_mapping is a list with the device of each stage. Received: "
            f"{given!r} of type {type(given).__name__}. Set one such as {_example(members)}."
        )
    if len(given) != len(stages):
        raise OptionError(
            f"device_mapping={list(given)} has {len(given)} entries, and the pipeline has "
            f"{len(stages)} stages. Set one such as {_example(members)}."
        )
    mapping: list[int] = []
    for number, (stage, entry) in enumerate(zip(stages, given, strict=True)):
        several = isinstance(stage, list | tuple)
        if several != isinstance(entry, list | tuple) or (several and len(entry) != len(stage)):
            raise OptionError(
                f"device_mapping[{number}]={entry!r} does not fit stage {number}, which is "
                f"{f'a list of {len(stage)} functions' if several else 'one function'}. Set one "
                f"such as {_example(members)}."
            )
        for device in entry if several else [entry]:
            mapping.append(whole_number(f"device_mapping[{number}]", device, 0))
    return tuple(mapping)


def _example(members: Sequence[Sequence[Any]]) -> list[Any]:
    devices = iter(range(sum(map(len, members))))
    return [[next(devices) for _ in each] if len(each) > 1 else next(devices) for each in members]


def first_arguments(inputs: Sequence[Any], element: Any) -> tuple[list[Any], dict[str, Any]]:
    """Returns what the first stage is called with, by position and by name."""
    if isinstance(element, dict):
        return list(inputs), dict(element)
    if isinstance(element, tuple | list):
        return [*inputs, *element], {}
    return [*inputs, *([] if element is None else [element])], {}


def next_arguments(outputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Returns what the stage after functions with these results is called with."""
    if len(outputs) == 1 and isinstance(outputs[0], dict):
        return [], dict(outputs[0])
    return [value for output in outputs for value in as_list(output)], {}


def as_list(output: Any) -> list[Any]:
    """Returns what a stage returned as a list; nothing for None."""
    if isinstance(output, tuple | list):
        return list(output)
    return [] if output is None else [output]


def run_chain(
    chain: FunctionChain,
    inputs: Sequence[Any],
    element: Any,
    around: Callable[[int], AbstractContextManager[Any]] = lambda stage: nullcontext(),
) -> list[Any]:
    """Calls the functions of a chain, one after the other.

    Args:
        chain: the functions.
        inputs: of the run.
        element: of the infeed; None without one.
        around: surrounds the call of each stage.

    Returns:
        What the functions of the last level returned.

    Raises:
        LoopError: if a function does not take what it is given.
    """
    args, kwargs = first_arguments(inputs, element)
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
    function: StageFunction, args: Sequence[Any], kwargs: dict[str, Any], role: str, source: str
) -> Any:
    """Calls a function of a pipeline.

    Args:
        function: of the user.
        args: by position.
        kwargs: by name.
        role: what it is, for messages.
        source: where its arguments are from.

    Raises:
        LoopError: if it does not take them.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtin functions do not tell
        return function(*args, **kwargs)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = f", and {sorted(kwargs)} by name" if kwargs else ""
        raise LoopError(
            f"{role}, {name_of(function)}{signature}, does not take what it gets from {source}: "
            f"{len(args)} values by position{names} ({error}). A value that a later stage needs "
            "goes through all stages before it: return it from each."
        ) from None
    return function(*args, **kwargs)


def check_captures(chain: Sequence[StageFunction]) -> None:
    """Refuses functions that close over arrays, which would be constants of their programs.

    Raises:
        OptionError: naming the array.
    """
    for number, function in enumerate(chain):
        if not isinstance(function, FunctionType):
            continue
        captured = inspect.getclosurevars(function)
        for name, value in {**captured.globals, **captured.nonlocals}.items():
            if isinstance(value, jax.Array) and not isinstance(value, keras.Variable):
                raise OptionError(
                    f"Stage {number} of a pipeline, {name_of(function)}, uses the array {name!r} "
                    f"of shape {list(value.shape)} from outside, and each stage gets its values "
                    "from the one before. Pass it in inputs, give it to every element of the "
                    "infeed, or make it a keras.Variable."
                )


def name_of(function: Any) -> str:
    """Returns what a function is called."""
    return getattr(function, "__name__", type(function).__name__)
