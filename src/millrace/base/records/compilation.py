"""Records of compilations: the program, the time and the cause."""

import enum
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from millrace.base.records.table_text import TableRecord


class Origin(enum.Enum):
    """The origin of an executable; or a switch between two."""

    COMPILED = "compiled"  # by XLA, now
    CACHE = "cache"  # read from the cache on disk
    SHARED = "shared"  # with an equal program that this process has compiled before
    LOADED = "loaded"  # exported by another process, and neither traced nor compiled here
    SWITCH = "switch"  # not an executable: another one ran than before


@dataclass(frozen=True, slots=True, repr=False)
class CompileRecord(TableRecord):
    """One executable, made from one program."""

    model: str  # the model's name
    program: str  # such as "train"
    batch: str  # shapes and dtypes of one batch, as text
    capacity: int  # steps that its block holds
    unrolled: int | None  # iterations in unrolled code; None for a loop of any number
    trace_seconds: float  # Python: model code to a jaxpr
    compile_seconds: float  # XLA: StableHLO to machine code; or reading it
    temporary_bytes: int  # allocated by the executable, besides arguments and results
    peak_bytes: int = 0  # of a call on each device: temporaries, arguments and results
    lower_seconds: float = 0.0  # JAX: jaxpr to StableHLO
    origin: Origin = Origin.COMPILED
    key: str = ""  # 16 hexadecimal digits, the same for equal programs in all processes
    cause: str = ""  # why it was made: the difference from the last one, in the user's words
    remedy: str = ""  # how to avoid it
    is_recompilation: bool = False  # of a program that this model has run in another form
    code_bytes: int = 0  # of machine code
    count: int = 1  # of switches
    began: float = 0.0  # seconds since 1970

    @property
    def seconds(self) -> float:
        """Seconds from the model's Python code to an executable."""
        return self.trace_seconds + self.lower_seconds + self.compile_seconds

    @property
    def is_executable(self) -> bool:
        """Whether an executable was made, and not only switched to."""
        return self.origin is not Origin.SWITCH


@dataclass(frozen=True, slots=True)
class CompileTotals:
    """The compilations of a run, or of a strategy so far, added up."""

    by_origin: Counter[Origin]  # executables
    seconds: float
    recompilations: int
    recompilation_seconds: float
    switches: int

    @property
    def executables(self) -> int:
        """Of all origins."""
        return self.by_origin.total()


def compile_totals(records: Iterable[CompileRecord]) -> CompileTotals:
    """Adds up records of executables and of switches."""
    records = list(records)
    executables = [record for record in records if record.is_executable]
    again = [record for record in executables if record.is_recompilation]
    return CompileTotals(
        Counter(record.origin for record in executables),
        sum(record.seconds for record in executables),
        len(again),
        sum(record.seconds for record in again),
        sum(record.count for record in records if not record.is_executable),
    )


class Aspect(enum.StrEnum):  # text has a hash in C: every comparison of keys takes many
    """The subject of a field of a key."""

    ARGUMENT = "argument"  # structure, shapes and dtypes of a program's arguments
    STATE = "state"  # of variables
    OPTION = "option"  # of millrace, and plain arguments of compile()
    MODEL = "model"  # layers, optimizer, loss, metrics: their configurations
    CODE = "code"  # the user's functions: instructions, constants, closures
    JAX = "jax"  # options of JAX on which tracing depends
    DEVICE = "device"
    FLAG = "flag"  # of XLA
    VERSION = "version"
    IDENTITY = "identity"  # of an object, without effect on the computation


@dataclass(frozen=True, slots=True)
class KeyField:
    """One of the facts that decide what a program is."""

    aspect: Aspect
    name: str  # in the user's words: "argument x", "pipeline_schedule", "`rate` in loss()"
    value: str  # equal for equal programs, in any process
    where: str = ""  # "file.py:12", of code


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """The identity of a program, field by field."""

    model: str
    program: str
    fields: tuple[KeyField, ...]
    is_complete: bool = True  # whether equal fields mean equal programs
    # Path of the script that compiled it, if the key was read from a file.
    script: str = field(default="", compare=False)

    @property
    def digest(self) -> str:
        """A hash of all fields but identities, as sixteen hexadecimal digits."""
        text = hashlib.sha256()
        for each in sorted(self.fields, key=lambda each: (each.aspect.value, each.name)):
            if each.aspect is not Aspect.IDENTITY:
                text.update(f"{each.aspect.value}\0{each.name}\0{each.value}\0".encode())
        return text.hexdigest()[:16]

    @property
    def without_identity(self) -> "ProgramKey":
        """The key without its identities, which are objects of one process."""
        kept = tuple(each for each in self.fields if each.aspect is not Aspect.IDENTITY)
        return replace(self, fields=kept)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a program was compiled."""

    text: str  # "argument x: shape (32, 28, 28) -> (17, 28, 28)"
    remedy: str = ""  # "Set drop_remainder=True ..."
    aspects: tuple[Aspect, ...] = ()  # of the fields that differ; none for the first program
