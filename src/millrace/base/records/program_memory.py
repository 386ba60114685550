"""The memory of one executable over its operations, by what it is used for."""

import itertools
from dataclasses import dataclass

from rich.console import Console

from millrace.base.records.memory import NO_LAYER, LayerMemory, LiveBuffer, by_layer, bytes_text
from millrace.base.records.printable import printable
from millrace.base.records.table_text import TableRecord

# What memory is used for, from the bottom of the picture to its top.
ROLES = (
    "parameters",  # weights and moving statistics
    "optimizer",
    "accumulators",
    "batches",
    "activations",  # values of forward, residuals among them
    "gradients",  # of weights, and cotangents
    "other",  # metrics, seeds, constants, results that are none of these
)
_LETTERS: dict[str, str] = dict(zip(ROLES, "posbag.", strict=True))  # of a drawing
_TENSORS = 5  # that are printed


@dataclass(frozen=True, slots=True)
class MemoryArea:
    """The bytes of one role at each program point."""

    role: str  # one of `ROLES`
    curve: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProgramSegment:
    """Program points that belong to the same layer and pass."""

    first: int  # the number of its first point; it ends where the next one begins
    layer: str  # empty if they belong to none
    kind: str  # "forward", "backward", "recomputation", "accumulation", "update" or ""


@dataclass(frozen=True, slots=True, repr=False)
class MemoryPeak(TableRecord):
    """The program point at which most bytes are alive."""

    point: int
    bytes: int  # on one device
    tensors: tuple[LiveBuffer, ...]  # the largest first

    @property
    def layers(self) -> tuple[LayerMemory, ...]:
        """The bytes of each layer, the largest first."""
        return by_layer(self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProgramMemory(TableRecord):
    """The memory of an executable on each of its devices, over its operations in order.

    It prints as a drawing, with the largest tensors at the peak.
    """

    model: str
    program: str  # "train_run", "train_forward of stage 1"
    key: str = ""  # as in `CompileRecord`
    stage: int = 0
    devices: tuple[str, ...] = ()
    recomputation: str = ""  # what backward computes again, in words; empty if nothing
    requirement: int  # bytes that the compiler reserves: the peak, and what is lost between
    areas: tuple[MemoryArea, ...]  # in the order of `ROLES`, those that are used
    point: int  # the number of the point with the peak
    alive: tuple[LiveBuffer, ...]  # at the peak, the largest first
    segments: tuple[ProgramSegment, ...] = ()
    began: float = 0.0  # of its compilation, in seconds since 1970
    is_trial: bool = False  # whether it was compiled for comparison, and never runs
    num_points: int = 0  # of the program; curves of longer programs have fewer
    attributed: float = 1.0  # share of the bytes with a layer or a role, on average over the points

    @property
    def curve(self) -> tuple[int, ...]:
        """Bytes alive at each program point."""
        return tuple(map(sum, zip(*(area.curve for area in self.areas), strict=True)))

    @property
    def peak(self) -> MemoryPeak:
        """The point at which most bytes are alive, and the tensors alive there."""
        nbytes = sum(area.curve[self.point] for area in self.areas if area.curve)
        return MemoryPeak(self.point, nbytes or self.requirement, self.alive)

    def _print(self, console: Console) -> None:
        title = f"{self.model}, {self.program}"
        if self.is_trial:
            title += " (compiled for comparison)"
        if self.recomputation:
            title += f"; computed again: {self.recomputation}"
        here = [each for each in self.segments if each.first <= self.point][-1:]
        where = "".join(f", {word}" for each in here for word in (each.layer, each.kind) if word)
        peak, count = self.peak, len(self.curve)
        numbers = f"peak {bytes_text(peak.bytes)}"
        if count > 1:
            numbers += f" at point {self.point + 1:,} of {count:,}{where}"
        lines = [printable(title), printable(numbers), *filter(None, [self.drawn()])]
        for each in peak.tensors[:_TENSORS]:
            words = each.layer or NO_LAYER, each.role, each.shape, each.operation or each.name
            lines.append(printable(f"{bytes_text(each.nbytes):>9}  {'  '.join(words)}"))
        console.print("\n".join(lines), markup=False, soft_wrap=True)

    def drawn(self, width: int = 80, height: int = 12) -> str:
        """Draws the bytes of each role over the program points, one role on another.

            3.00 KB |    a  a activations 2.00 KB at the peak
                    |   aa  p parameters 1.00 KB at the peak
                    | aaaa
                    |ppppp

        Args:
            width: columns of the program points.
            height: lines from zero to the peak.
        """
        if not self.curve:
            return ""
        peak = self.peak.bytes
        letters = [_LETTERS.get(area.role, "?") for area in self.areas]
        legend = [
            f"{letter} {area.role} {bytes_text(area.curve[self.point])} at the peak"
            for letter, area in zip(letters, self.areas, strict=True)
        ][::-1]
        stacks = self._stacks(width)
        lines: list[str] = []
        for row in range(height):
            level = peak * (height - row - 0.5) / height
            cells = (
                next((one for one, top in zip(letters, stack, strict=True) if top > level), " ")
                for stack in stacks
            )
            axis = bytes_text(peak) if row == 0 else ""
            words = legend[row] if row < len(legend) else ""
            lines.append(f"{axis:>9} |{''.join(cells)}  {words}".rstrip())
        return "\n".join(lines)

    def _stacks(self, width: int) -> list[list[int]]:
        """Returns for each column of a drawing the upper end of each area, in bytes.

        A column shows the fullest of its points.
        """
        curve = self.curve
        size = -(-len(curve) // width)
        points = [
            max(range(first, min(first + size, len(curve))), key=curve.__getitem__)
            for first in range(0, len(curve), size)
        ]
        return [
            list(itertools.accumulate(area.curve[point] for area in self.areas)) for point in points
        ]
