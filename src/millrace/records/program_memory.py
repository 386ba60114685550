"""The memory of one executable over its operations, by what it is used for."""

from dataclasses import dataclass

from millrace.records.memory import LayerMemory, LiveBuffer, by_layer

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


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The program point at which most bytes are alive."""

    point: int
    bytes: int  # on one device
    tensors: tuple[LiveBuffer, ...]  # the largest first

    @property
    def layers(self) -> tuple[LayerMemory, ...]:
        """The bytes of each layer, the largest first."""
        return by_layer(self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramMemory:
    """The memory of an executable on each of its devices, over its operations in order."""

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
