"""The categories of `IPUConfig` about how operations compute.

everything here     of no effect: see `advice`
"""

from millrace.ipu.config.advice import NUMBERS, XLA
from millrace.ipu.config.category import Category, Group
from millrace.ipu.config.enums import StochasticRoundingBehaviour
from millrace.ipu.config.option import Option


def _poplar(what: str) -> Option:
    return Option(dict, {}, f"Poplar options of {what}.", advice=XLA)


class Convolutions(Category):
    """Options of convolutions."""

    poplar_options = _poplar("convolutions")


class Matmuls(Category):
    """Options of matrix products."""

    clear_pass_type = Option(bool, False, "Whether passes share their plans.", advice=XLA)
    poplar_options = _poplar("matrix products")


class Slices(Category):
    """Options of slices."""

    poplar_options = _poplar("slices")


class Pooling(Category):
    """Options of pooling."""

    poplar_options = _poplar("pooling")


class NormsExperimental(Category):
    """Options of normalisation that may change."""

    distributed_batch_norm_replica_group_size = Option(
        int, 1, "Replicas that share batch statistics.", advice="All replicas follow one order."
    )


class Norms(Category):
    """Options of normalisation."""

    use_stable_statistics = Option(bool, False, "Whether means come first.", advice=XLA)
    experimental = Group(NormsExperimental, "Options that may change.")


class FloatingPointBehaviour(Category):
    """Options of floating-point exceptions and rounding."""

    inv = Option(bool, False, "Stop at invalid operations.", advice=NUMBERS)
    div0 = Option(bool, False, "Stop at divisions by zero.", advice=NUMBERS)
    oflo = Option(bool, False, "Stop at overflows.", advice=NUMBERS)
    esr = Option(
        (StochasticRoundingBehaviour, bool),
        StochasticRoundingBehaviour.OFF,
        "Stochastic rounding of float16.",
        advice="Set gradient_accumulation dtype 'float32', or use bfloat16.",
    )
    nanoo = Option(bool, False, "Overflow becomes NaN.", advice=NUMBERS)
    set_all = Option(bool, False, "Sets all of these.", advice=NUMBERS)
