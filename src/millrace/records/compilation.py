"""What was compiled, how long it took, and why."""

import enum
import hashlib
from dataclasses import dataclass, field


class Origin(enum.Enum):
    """Where an executable came from; or that two of them took turns."""

    COMPILED = "compiled"  # by XLA, now
    CACHE = "cache"  # read from the cache on disk
    SHARED = "shared"  # of an equal program that this process has compiled before
    LOADED = "loaded"  # exported by another process, and neither traced nor compiled here
    SWITCH = "switch"  # no executable: another one ran on the devices than before


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One executable that was made, from one program."""

    model: str  # the model's name
    program: str  # such as "train"
    batch: str  # shapes and dtypes of one batch, as text
    capacity: int  # steps that its block holds
    unrolled: int | None  # turns in unrolled code; None is a loop of any number of them
    trace_seconds: float  # Python: model code to a jaxpr
    compile_seconds: float  # XLA: StableHLO to machine code; or reading it
    temporary_bytes: int  # what the executable allocates besides arguments and results
    peak_bytes: int = 0  # what a call needs on each device: these, arguments and results
    lower_seconds: float = 0.0  # JAX: jaxpr to StableHLO
    origin: Origin = Origin.COMPILED
    key: str = ""  # 16 hexadecimal digits, by which equal programs are equal in all processes
    cause: str = ""  # why it was made: what differs from the last one, in the user's words
    remedy: str = ""  # what to do if that was not intended
    is_recompilation: bool = False  # of what this model has run before, for other shapes, say
    code_bytes: int = 0  # of machine code
    count: int = 1  # of switches
    began: float = 0.0  # seconds since 1970

    @property
    def seconds(self) -> float:
        """Seconds from the model's Python code to an executable."""
        return self.trace_seconds + self.lower_seconds + self.compile_seconds

    @property
    def is_executable(self) -> bool:
        """Whether an executable was made, not only switched to."""
        return self.origin is not Origin.SWITCH


class Aspect(enum.StrEnum):  # text has a hash in C: every comparison of keys takes many
    """What a field of a key is about."""

    ARGUMENT = "argument"  # structure, shapes and dtypes of what a program is given
    STATE = "state"  # of variables
    OPTION = "option"  # of millrace, and what compile() was given that is no object
    MODEL = "model"  # layers, optimizer, loss, metrics: their configurations
    CODE = "code"  # functions of the user's: instructions, constants, what they close over
    JAX = "jax"  # options of JAX that tracing depends on
    DEVICE = "device"
    FLAG = "flag"  # of XLA
    VERSION = "version"
    IDENTITY = "identity"  # which object: says nothing of what is computed


@dataclass(frozen=True, slots=True)
class KeyField:
    """One of the things that decide what a program is."""

    aspect: Aspect
    name: str  # in the user's words: "argument x", "pipeline_schedule", "`rate` in loss()"
    value: str  # equal for equal programs, in any process
    where: str = ""  # "file.py:12", of code


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """What identifies a program, field by field."""

    model: str
    program: str
    fields: tuple[KeyField, ...]
    is_complete: bool = True  # whether programs with equal fields are surely equal
    # Path of the script that has compiled it, where the key was read from a file.
    script: str = field(default="", compare=False)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits, of all fields but identities."""
        text = hashlib.sha256()
        for each in sorted(self.fields, key=lambda each: (each.aspect.value, each.name)):
            if each.aspect is not Aspect.IDENTITY:
                text.update(f"{each.aspect.value}\0{each.name}\0{each.value}\0".encode())
        return text.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a program was compiled."""

    text: str  # "argument x: shape (32, 28, 28) -> (17, 28, 28)"
    remedy: str = ""  # "Set drop_remainder=True ..."
    aspects: tuple[Aspect, ...] = ()  # of the fields that differ; none for the first program
