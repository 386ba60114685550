"""The programs of a model for a target, and what holds for every one of them."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

import millrace
from millrace._compat.jax_executables import sizes_of
from millrace.compilation.executables.executable import compiled_of
from millrace.programs.plan import Mode, Plan

# Calls of libraries and of XLA's own code on the device. A call of the CPU's (`lapack_`, `Eigen`,
# `xla.cpu`) would not exist there, and one of a TPU's host (`HostExecute`) or of Python's would
# stop the loop at every step.
ALLOWED_CALLS = {
    "gpu": r"__cudnn\$\w+|__cublas\$\w+(\$\w+)*|__triton\w*|cu_threefry2x32\w*|cub\$\w+",
    "tpu": r"AllocateBuffer|ConcatBitcast|MoveTo(Host|Device)|AssumeGatherIndicesInBound",
}
HOST_CALLS = re.compile(r"callback|lapack|eigen|cpu|python", re.IGNORECASE)
TRANSFERS = re.compile(r" (infeed|outfeed|send|recv)\(")


@dataclass(frozen=True)
class TargetProgram:
    """A program, compiled."""

    name: str
    plan: Plan | None
    compiled: jax.stages.Compiled
    platform: str
    is_trial: bool
    is_one_step: bool = False  # of an execution of one step

    @cached_property
    def text(self) -> str:
        """Its instructions, as XLA writes them."""
        return self.compiled.as_text() or ""

    @cached_property
    def memory(self) -> Any:
        """Its memory, as XLA says it."""
        return self.compiled.memory_analysis()

    @property
    def peak(self) -> int:
        """Bytes of a device during a call."""
        return sizes_of(self.compiled).peak_bytes

    @property
    def mode(self) -> Mode | None:
        """The loop that it serves."""
        return None if self.plan is None else self.plan.mode

    @property
    def is_loop(self) -> bool:
        """Whether it runs many steps, in one loop: one step alone is called without a loop."""
        return self.name.endswith("_run") and not self.is_one_step

    @cached_property
    def entry(self) -> list[str]:
        """The instructions that run once."""
        return self.text[self.text.index("\nENTRY ") :].split("\n}")[0].splitlines()

    def custom_calls(self) -> set[str]:
        """Returns the names of the functions that it calls."""
        return set(re.findall(r'custom_call_target="([^"]*)"', self.text))

    def collective_bytes(self, *operations: str) -> int:
        """Returns the bytes of the results of collectives of these kinds, each counted once."""
        names = "|".join(operations)
        found = re.findall(rf"= (.*?) (?:{names})(?:-start)?\(", self.text)
        return sum(map(shape_bytes, found))


def shape_bytes(text: str) -> int:
    """Returns the bytes of a shape as XLA writes it; of a tuple, those of its elements."""
    total = 0
    for dtype, lengths in re.findall(r"\b([a-z]+\d+)\[([\d,]*)\]", text):
        bits = int(re.sub(r"\D", "", dtype))
        total += math.prod(map(int, filter(None, lengths.split(",")))) * bits // 8
    return total


class Target:
    """A strategy for devices that are described, and the programs compiled in it so far."""

    def __init__(self, target: str):
        self.strategy = millrace.Strategy(target=target)
        self.programs: list[TargetProgram] = []
        self._is_one_step = False
        self.strategy._totals.compile_log.observers.append(self._add)

    def _add(self, new: Any) -> None:
        compiled = compiled_of(new.executable)
        platform = self.strategy.devices[0].platform
        one = self._is_one_step
        self.programs.append(
            TargetProgram(new.record.program, new.plan, compiled, platform, new.is_trial, one)
        )

    def precompile(self, model: Any, batch: Any, **options: Any) -> dict[str, TargetProgram]:
        """Compiles what the loops of a model would run, checks it, and returns it by name.

        Programs of the same name, such as those of stages that are equal, are checked, too.
        """
        del self.programs[:]
        self._is_one_step = model.steps_per_execution == 1
        model.precompile(batch, **options)
        for program in self.programs:
            check(program)
        return {program.name: program for program in self.programs if not program.is_trial}


def check(program: TargetProgram) -> None:
    """Checks what holds for every program."""
    calls = program.custom_calls()
    strange = {each for each in calls if not re.fullmatch(ALLOWED_CALLS[program.platform], each)}
    assert not strange, f"{program.name} calls {sorted(strange)}"
    assert not any(map(HOST_CALLS.search, calls)), calls
    found = TRANSFERS.search(program.text)
    assert found is None, f"{program.name} exchanges values with the host: {found}"
    assert "f64[" not in program.text, program.name
    if program.is_loop:
        check_loop(program)


def check_loop(program: TargetProgram) -> None:
    """Checks that many steps are one loop, of a length that is an argument."""
    loops = [line for line in program.entry if re.search(r" while\(", line)]
    over_steps = [line for line in loops if "known_trip_count" not in line]
    # A watch that halts computes the gradients of one update ahead, and has an end of its own. The
    # compiler for TPU does not note that the micro-batches of the former are of a known number.
    most = 3 if program.plan and program.plan.taps.stops else 1
    assert 1 <= len(over_steps) <= most, f"{program.name} has {len(over_steps)} loops over steps"


def check_state(program: TargetProgram, model: Any) -> None:
    """Checks that training writes its state where it was: there is no second copy of it."""
    state = state_bytes(model)
    aliased = program.memory.alias_size_in_bytes + program.memory.host_alias_size_in_bytes
    assert aliased >= state, (program.name, aliased, state)


def state_bytes(model: Any) -> int:
    """Returns the bytes of trainable variables and of the optimizer's."""
    return bytes_of(model.trainable_variables) + bytes_of(model.optimizer.variables)


def bytes_of(variables: Any) -> int:
    """Returns the bytes of variables."""
    return sum(math.prod(v.shape) * jax.numpy.dtype(v.dtype).itemsize for v in variables)
