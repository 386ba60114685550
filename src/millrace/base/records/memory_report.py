"""The memory that training needs on each device, and changes with which it would fit."""

from dataclasses import astuple, dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.base.records.memory import LayerMemory, LiveBuffer, by_layer, bytes_text
from millrace.base.records.table_text import TableRecord, plain_table


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """The choice for one program of a model, or for the stages of its pipeline."""

    model: str  # its name
    budget: int | float  # as the user gave it: bytes, or a share of training without a budget
    peak_bytes: int  # of training with this choice, on the fullest device
    extra_flops: float | None  # added, as a share of a step's FLOPs; None for a pipeline
    choice: str  # the recomputed part, in words

    def __str__(self) -> str:
        return f"keeps to {self.peak_bytes:,} bytes: {self.choice}"


_SHOWN = 8  # tensors of a device
_LAYERS_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one device at its peak, by purpose. A model in one piece has one stage."""

    stage: int
    parameters: int  # weights and moving statistics
    optimizer_state: int
    accumulators: int  # of gradients, over the micro-batches of an update
    temporaries: int  # activations, cotangents and gradients of the program at the peak
    in_flight: int  # residuals and activations of micro-batches that wait for their backward
    batches: int
    other: int  # metrics, logs, numbers

    @property
    def total(self) -> int:
        """The sum of all."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """All of them, in order."""
        return astuple(self)[1:]


@dataclass(frozen=True, slots=True, repr=False)
class DeviceMemory(TableRecord):
    """The peak of one device, and of the devices of other replicas with the same values."""

    devices: tuple[str, ...]
    program: str  # that runs at the peak
    stages: tuple[StageMemory, ...]
    alive: tuple[LiveBuffer, ...]  # at the peak, largest first
    limit: int | None = None  # in bytes
    curve: tuple[int, ...] = ()  # bytes alive at each operation of that program

    @property
    def peak(self) -> int:
        """Bytes of all stages."""
        return sum(stage.total for stage in self.stages)

    @property
    def layers(self) -> tuple[LayerMemory, ...]:
        """Bytes alive at the peak, by layer, the largest first."""
        return by_layer(self.alive)

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the limit; None if no limit is known."""
        return None if self.limit is None else self.peak <= self.limit


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """A change of options or batch, and its effect."""

    code: str  # for the user to write
    peak: int  # bytes of the fullest device
    extra_flops: float  # added to one update on one device: 0.25 is a quarter more
    fits: bool


@dataclass(frozen=True, slots=True, repr=False)
class MemoryReport(TableRecord):
    """The memory that training a model needs. Prints as tables."""

    model: str
    batch: str
    devices: tuple[DeviceMemory, ...]
    changes: tuple[MemoryChange, ...] = ()  # the cheapest first; none where all fits

    @property
    def peak(self) -> int:
        """Bytes of the fullest device."""
        return max((device.peak for device in self.devices), default=0)

    @property
    def fits(self) -> bool | None:
        """Whether all devices have enough memory; None if no limit is known."""
        checked = [device.fits for device in self.devices if device.fits is not None]
        return all(checked) if checked else None

    @property
    def verdict(self) -> str:
        """One sentence on whether it fits."""
        peak = bytes_text(self.peak)
        if self.fits is None:
            return f"Needs {peak}. No limit is known: set one, such as budget='16GB'."
        limits = {device.limit for device in self.devices if device.limit is not None}
        limit = " or ".join(bytes_text(each) for each in sorted(limits))
        if self.fits:
            return f"Fits: needs {peak} of {limit}."
        over = max(d.peak - d.limit for d in self.devices if d.limit is not None)
        return f"Does not fit: needs {peak} of {limit}, {bytes_text(over)} too much."

    def _print(self, console: Console) -> None:
        style = {True: "green", False: "bold red", None: ""}[self.fits]
        console.print(f"{self.model}, batches of {self.batch}", markup=False)
        console.print(self.verdict, markup=False, style=style)
        console.print(self._stage_table())
        for device in self.devices:
            if device.alive:
                where = f"alive at the peak of {_devices(device)}, in {device.program}"
                console.print(f"\n{where}, by layer", markup=False)
                console.print(self._layer_table(device))
                console.print("\nthe largest tensors of these")
                console.print(self._alive_table(device))
        if self.changes:
            fit = any(change.fits for change in self.changes)
            title = "what would make it fit" if fit else "nothing tried makes it fit; the nearest"
            console.print(f"\n{title}")
            console.print(self._change_table())

    def _stage_table(self) -> Table:
        names = (">parameters", ">optimizer", ">accumulators", ">temporaries", ">in flight")
        table = plain_table("device", "stage", *names, ">batches", ">other", ">total")
        table.columns[0].no_wrap = True
        for device in self.devices:
            for stage in device.stages:
                sizes = *stage.sizes, stage.total
                texts = ["" if not size else bytes_text(size) for size in sizes]
                table.add_row(_devices(device), str(stage.stage), *texts)
        return table

    def _layer_table(self, device: DeviceMemory) -> Table:
        table = plain_table(">bytes", ">share", ">tensors", "layer")
        layers = device.layers
        shown, others = layers[:_LAYERS_SHOWN], layers[_LAYERS_SHOWN:]
        if others:
            nbytes, tensors = sum(e.nbytes for e in others), sum(e.tensors for e in others)
            shown = (*shown, LayerMemory(f"{len(others)} other layers", nbytes, tensors))
        total = sum(each.nbytes for each in layers) or 1
        for each in shown:
            share = f"{each.nbytes / total:.1%}"
            table.add_row(bytes_text(each.nbytes), share, str(each.tensors), Text(each.layer))
        return table

    def _alive_table(self, device: DeviceMemory) -> Table:
        table = plain_table(">bytes", "layer", "shape", "tensor")
        for each in device.alive[:_SHOWN]:
            layer = f"{each.layer} (inferred)" if each.inferred and each.layer else each.layer
            is_named = each.opcode in ("parameter", "")
            tensor = each.name if is_named else each.operation or f"{each.opcode} {each.name}"
            table.add_row(bytes_text(each.nbytes), Text(layer), Text(each.shape), Text(tensor))
        if others := device.alive[_SHOWN:]:
            nbytes = sum(each.nbytes for each in others)
            table.add_row(bytes_text(nbytes), "", "", f"{len(others)} others")
        return table

    def _change_table(self) -> Table:
        table = plain_table(">peak", ">FLOPs", "change")
        for change in self.changes:
            flops = f"{change.extra_flops:+.1%}"
            table.add_row(bytes_text(change.peak), flops, Text(change.code))
        return table


def _devices(device: DeviceMemory) -> str:
    first, *others = device.devices
    return f"{first} and {len(others)} more" if others else first
