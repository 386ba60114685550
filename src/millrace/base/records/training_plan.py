"""A training plan: the ways to run one weight update, compared by time and memory.

    time  peak      bubble  FLOPs   moved   replicas x stages  code
1   1.00  13.1 MB   0 %     1.2 G   0 B     1 x 1              model.fit(..., batch_size=512)
2   1.31  9.82 MB   0 %     1.6 G   0 B     1 x 1              model.set_recomputation_options(...)

A plan is data: it can be saved, read and compared without the model.
"""

import json
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.base.records.codec import decode, encode
from millrace.base.records.json_text import parse_json
from millrace.base.records.memory import bytes_text
from millrace.base.records.printable import printable
from millrace.base.records.table_text import TableRecord, plain_table, text_of
from millrace.base.records.validity import require
from millrace.errors import OptionError

FORMAT = 1  # of the file
_LONGEST = 300  # characters of a reason in an error
_MOST = 2**40  # rows, steps and devices that a file may ask for
_MOST_CALLS = 100_000
_COUNTS = (
    *("batch_size", "steps_per_execution", "replicas", "stages", "groups", "accumulation"),
    *("budget", "max_block_bytes", "micro_batch"),
)

StageOfCall = tuple[str, int, int]  # name of a layer call, its node index, its stage


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UpdatePlan(TableRecord):
    """The options that decide how one weight update runs."""

    batch_size: int  # rows of one batch of Keras's, for one replica
    steps_per_execution: int  # of all replicas together, as in `compile`
    replicas: int
    stages: int = 1  # of one replica
    groups: int = 1  # devices of one replica
    cut: tuple[StageOfCall, ...] = ()  # empty for one piece, or where scopes in `call` give stages
    is_balanced: bool = True  # whether the cut is that of "auto"
    schedule: str = ""  # of a pipeline
    device_mapping: tuple[int, ...] | None = None  # of stages, where it is not the default
    accumulation: int = 1  # batches of each replica in an update
    micro_batch: int | None = None  # rows that a step computes at a time; None for whole batches
    recomputation: str = "none"  # mode
    budget: int | None = None  # bytes on a device, of recomputation
    shard_optimizer_state: bool = False
    shard_weights: bool = False
    offload_optimizer_state: bool = False
    max_block_bytes: int | None = None  # None keeps the option of the model
    max_resident_bytes: int | None = None

    @property
    def rows(self) -> int:
        """Rows of one weight update."""
        return self.batch_size * self.accumulation * self.replicas

    @property
    def micro_rows(self) -> int:
        """Rows of a micro-batch."""
        return self.batch_size if self.micro_batch is None else self.micro_batch

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each replica in an update."""
        return self.accumulation * -(-self.batch_size // self.micro_rows)

    @property
    def layout(self) -> str:
        """Replicas and stages, as `2 x 4`."""
        return f"{self.replicas} x {self.stages}"

    @property
    def code(self) -> str:
        """The calls that set the same options, one on each line."""
        return "\n".join([*self._calls(), f"model.fit(..., batch_size={self.batch_size})"])

    def _calls(self) -> Iterator[str]:
        if self.stages > 1:
            if self.cut:
                cut = f"'auto', num_stages={self.stages}" if self.is_balanced else "..."
                yield f"model.set_pipeline_stage_assignment({cut})"
            options = [
                f"gradient_accumulation_steps_per_replica={self.accumulation}",
                f"pipeline_schedule={self.schedule!r}",
            ]
            if self.device_mapping is not None:
                options.append(f"device_mapping={list(self.device_mapping)}")
            yield f"model.set_pipelining_options({', '.join(options)})"
        elif self.accumulation > 1:
            steps = f"gradient_accumulation_steps_per_replica={self.accumulation}"
            yield f"model.set_gradient_accumulation_options({steps})"
        elif self.micro_batch is not None:
            yield f"model.set_gradient_accumulation_options(micro_batch={self.micro_batch})"
        if self.budget is not None:
            yield f"model.set_recomputation_options(budget={self.budget})"
        elif self.recomputation != "none":
            yield f"model.set_recomputation_options(mode={self.recomputation!r})"
        replication = {
            "replicated_optimizer_state_sharding": self.shard_optimizer_state,
            "replicated_weight_sharding": self.shard_weights,
            "offload_weight_update_variables": self.offload_optimizer_state,
        }
        if any(replication.values()):
            arguments = ", ".join(f"{name}=True" for name, is_set in replication.items() if is_set)
            yield f"model.set_replication_options({arguments})"
        feed = [
            f"{name}={value}"
            for name in ("max_block_bytes", "max_resident_bytes")
            if (value := getattr(self, name)) is not None
        ]
        if feed:
            yield f"model.set_infeed_queue_options({', '.join(feed)})"
        if self.steps_per_execution > 1:
            yield f"model.compile(..., steps_per_execution={self.steps_per_execution})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Alternative(TableRecord):
    """One way to run an update, with its costs."""

    update: UpdatePlan
    seconds: float  # of one update: measured, or from counted costs and assumed rates
    peaks: tuple[tuple[str, int], ...]  # device, and its bytes at the peak, as compiled
    bubble: float  # idle share of the devices of a pipeline, from 0 to 1
    flops: float  # of one update, on all devices
    moved_bytes: float  # between devices, in one update
    fits: bool
    least_seconds: float = 0.0  # a lower bound for one update on a target; 0 without one

    @property
    def peak(self) -> int:
        """Bytes of the fullest device."""
        return max((nbytes for _, nbytes in self.peaks), default=0)

    @property
    def code(self) -> str:
        """The calls that set it."""
        return self.update.code


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanRecord(TableRecord):
    """The alternatives for one model, the fastest that fits first. Prints as a table."""

    model: str  # its name
    batch: str  # shapes and dtypes of all rows of one update
    devices: tuple[str, ...]
    memory: int  # bytes of one device
    is_measured: bool  # whether times are measured
    compilations: int  # programs of training that were compiled to find it
    alternatives: tuple[Alternative, ...]
    target: str | None = None  # the device of a target, for which it was compiled; None: it is here
    format: int = FORMAT

    @property
    def chosen(self) -> Alternative:
        """The first alternative."""
        return self.alternatives[0]

    @property
    def batch_size(self) -> int:
        """Rows of one batch, for `fit` after `apply()`."""
        return self.chosen.update.batch_size

    @property
    def fits(self) -> bool:
        """Whether the first alternative stays within the memory."""
        return self.chosen.fits

    def alternative(self, number: object) -> Alternative:
        """Returns an alternative by its number in the table, from 1.

        Raises:
            OptionError: if there is none.
        """
        count = len(self.alternatives)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= count:
            raise OptionError(
                f"The plan for {self.model!r} has the alternatives 1 to {count}. Received: "
                f"{number!r}. Set apply(1) for the fastest, or print the plan to see all."
            )
        return self.alternatives[number - 1]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON.

        Raises:
            OptionError: if the file cannot be written.
        """
        data = {each.name: encode(getattr(self, each.name)) for each in fields(PlanRecord)}
        try:
            pathlib.Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise OptionError(
                f"The plan cannot be written to {str(path)!r}: {error.strerror}. Give save() a "
                "path in a directory that exists and that you may write to."
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a plan that `save` has written.

        Raises:
            OptionError: if there is no such file, or it is damaged.
        """
        try:
            plan = decode(PlanRecord, parse_json(pathlib.Path(path).read_bytes()))
            _check(plan)
        except OSError as error:
            raise OptionError(
                f"The plan {str(path)!r} cannot be read: {error.strerror}. Give load() the path "
                "that plan.save(path) was given."
            ) from error
        except ValueError as error:
            reason = printable(str(error))[:_LONGEST]
            raise OptionError(
                f"{str(path)!r} is no training plan, or a damaged one: {reason}. Make the plan "
                "again by strategy.plan(model, batch_spec), and save it."
            ) from error
        return cls(**{each.name: getattr(plan, each.name) for each in fields(PlanRecord)})

    def diff(self, other: object) -> str:
        """Returns a table of what differs between two plans and their first alternatives.

        Raises:
            OptionError: if `other` is no plan.
        """
        if not isinstance(other, PlanRecord):
            raise OptionError(
                f"diff() compares two training plans. Received: {type(other).__name__}. Give it "
                "the result of strategy.plan() or of millrace.TrainingPlan.load(path)."
            )
        table = plain_table("", "this plan", "the other")
        mine, others = self._facts(), other._facts()
        for name in dict.fromkeys((*mine, *others)):
            values = mine.get(name, ""), others.get(name, "")
            if values[0] != values[1]:
                table.add_row(name, *map(Text, values))
        if not table.row_count:
            return "The plans are the same."
        return text_of(lambda console: console.print(table))

    def _facts(self) -> dict[str, str]:
        chosen = self.chosen
        facts = {
            "model": self.model,
            "rows of an update": self.batch,
            "devices": ", ".join(self.devices),
            "memory": bytes_text(self.memory),
            "peak": bytes_text(chosen.peak),
            "bubble": f"{chosen.bubble:.1%}",
            "FLOPs": _count(chosen.flops),
            "moved": bytes_text(chosen.moved_bytes),
            "alternatives": str(len(self.alternatives)),
        }
        if self.is_measured or self.target is not None:
            facts["time"] = _milliseconds(chosen.seconds)
        for each in fields(UpdatePlan):
            value = getattr(chosen.update, each.name)
            if each.name == "cut":
                value = ", ".join(f"{name}: {stage}" for name, _, stage in value)
            facts[each.name] = str(value)
        return {name: printable(value) for name, value in facts.items()}

    def _print(self, console: Console) -> None:
        count = len(self.devices)
        shown = self.devices[0] if count == 1 else f"{count} devices, {self.devices[0]} and on"
        console.print(f"{self.model}, updates of {self.batch}", markup=False)
        compiled = f"compiled trainings: {self.compilations}"
        console.print(f"{shown}, {bytes_text(self.memory)} on each; {compiled}", markup=False)
        if self.target is not None:
            console.print(
                f"{self.target}: memory as its compiler plans it; times estimated from the "
                "device's public figures, at least those of its peak FLOPs and bytes",
                markup=False,
            )
        if not self.fits:
            console.print("Nothing that was compiled fits. The nearest:", style="bold red")
        console.print(self._table())

    def _table(self) -> Table:
        is_in_seconds = self.is_measured or self.target is not None
        numbers = (
            ">time",
            *[">at least"] * (self.target is not None),
            ">peak",
            ">bubble",
            ">FLOPs",
            ">moved",
            ">replicas x stages",
        )
        table = plain_table(">", *numbers, "code")
        layout = table.columns[-2]
        layout.no_wrap, layout.width = False, 8
        fastest = min(each.seconds for each in self.alternatives) or 1.0
        for number, each in enumerate(self.alternatives, 1):
            seconds = each.seconds
            time = _milliseconds(seconds) if is_in_seconds else f"{seconds / fastest:.2f}"
            least = [_milliseconds(each.least_seconds)] * (self.target is not None)
            table.add_row(
                str(number),
                time,
                *least,
                bytes_text(each.peak),
                f"{each.bubble:.0%}",
                _count(each.flops),
                bytes_text(each.moved_bytes),
                each.update.layout,
                Text(printable(each.code)),
            )
        return table


def _milliseconds(seconds: float) -> str:
    number = seconds * 1e3
    return f"{number:.2f} ms" if number >= 0.1 or not number else f"{number:.2g} ms"


def _count(number: float) -> str:
    for unit in ("", "k", "M", "G"):
        if abs(number) < 1000:
            return f"{number:.3g} {unit}".rstrip()
        number /= 1000
    return f"{number:.3g} T"


def _check(plan: PlanRecord) -> None:
    """Checks a plan that was read, so that those who use it need no checks.

    Raises:
        ValueError: if a number cannot be one of a plan.
    """
    require(plan.format == FORMAT, f"its format is {plan.format}, and {FORMAT} is known here")
    require(bool(plan.alternatives), "it has no alternative")
    require(bool(plan.devices), "it has no device")
    require(plan.memory > 0, f"its memory is {plan.memory}")
    for each in plan.alternatives:
        update = each.update
        for name in _COUNTS:
            number = getattr(update, name)
            require(number is None or 0 < number <= _MOST, f"{name} is {number}")
        require((update.max_resident_bytes or 0) >= 0, "max_resident_bytes is below 0")
        require(len(update.cut) <= _MOST_CALLS, f"its cut has {len(update.cut)} layer calls")
        require(0.0 <= each.seconds < float("inf"), f"the time of an update is {each.seconds}")
        require(0.0 <= each.least_seconds < float("inf"), "a lower bound of a time is no number")
        require(0.0 <= each.bubble <= 1.0, f"a bubble is {each.bubble}")
        require(0.0 <= each.flops < float("inf"), f"the FLOPs are {each.flops}")
        require(0.0 <= each.moved_bytes < float("inf"), f"{each.moved_bytes} bytes are moved")
