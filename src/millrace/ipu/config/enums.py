"""The enumerations of `IPUConfig`.

DeviceConnectionType.PRE_COMPILE     -> programs are compiled and written, none runs
everything else                      -> accepted: XLA and the JAX runtime decide these themselves
"""

import enum


class SelectionOrder(enum.IntEnum):
    """The order in which a device group's chips are numbered."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class SchedulingAlgorithm(enum.IntEnum):
    """How the operations of a program are ordered."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class DeviceConnectionType(enum.Enum):
    """When a program takes hold of its devices."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class MergeRemoteBuffersBehaviour(enum.Enum):
    """Whether values in remote memory share a buffer."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class StochasticRoundingBehaviour(enum.Enum):
    """Where float16 results are rounded at random."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2
