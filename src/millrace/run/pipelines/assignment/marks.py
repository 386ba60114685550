"""`PipelineStage(i)`: layers called or created inside belong to stage `i`.

    with strategy.scope():
        x = inputs = keras.Input((32,))
        with millrace.PipelineStage(0):
            x = keras.layers.Dense(16)(x)
        with millrace.PipelineStage(1):
            x = keras.layers.Dense(4)(x)
        model = keras.Model(inputs, x)

Graph nodes and layers record the stage in which they were created. The `call` of a subclassed model
creates neither; there the stage is the name scope `mr.S<i>` of the operations that JAX traces.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import jax
import numpy as np

from millrace._compat.keras_graph import is_calling, record_stages
from millrace.base.threads.scoped_value import ScopedValue
from millrace.errors import OptionError, PlanError


class PipelineStage:
    """Puts the layer calls inside it, and the layers created inside it, into a pipeline stage.

    The stage around a call takes precedence over the stage in which its layer was created.

    Args:
        stage: number of the stage, from 0. Values flow from lower to higher stages.

    Raises:
        OptionError: if `stage` is negative or not a whole number.
        PlanError: on entry, inside another stage, or outside of both a strategy's scope and the
            `call` of a model.
    """

    def __init__(self, stage: int):
        self.stage: int = _number(stage)

    def __enter__(self) -> "PipelineStage":
        _check(self.stage)
        self._scopes = ExitStack()
        self._scopes.enter_context(jax.named_scope(f"mr.S{self.stage}"))
        self._scopes.enter_context(_stage.bound_to(self.stage))
        entered = _entered.get()
        if entered is not None:
            entered.add(self.stage)
        _ever_entered.add(self.stage)
        return self

    def __exit__(self, *error: object) -> None:
        self._scopes.close()


def _number(value: object) -> int:
    stage = int(value) if isinstance(value, np.integer) else value
    if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
        raise OptionError(
            f"A pipeline stage is a whole number from 0 on. Received: PipelineStage({stage!r}). "
            "Set 0 for the first stage, 1 for the one after it."
        )
    return stage


def _check(stage: int) -> None:
    outer = _stage.get()
    if outer is not None:
        raise PlanError(
            f"PipelineStage({stage}) was entered inside PipelineStage({outer}): a call "
            "belongs to one stage. Leave the outer `with` before entering the next."
        )
    if not _is_allowed.get() and not is_calling():
        raise PlanError(
            f"PipelineStage({stage}) was entered outside of a strategy's scope, where no model "
            "would use it. Move it into `with strategy.scope():`, or into the `call` of a model."
        )


def current_stage() -> int | None:
    """Returns the stage of this thread, or None outside of `PipelineStage`."""
    return _stage.get()


def stages_allowed() -> AbstractContextManager[object]:
    """Allows `PipelineStage` in this thread while the context is open, as a strategy's scope is."""
    record_stages(current_stage)
    return _is_allowed.bound_to(True)


def stages_were_entered() -> bool:
    """Whether any thread of this process has entered a `PipelineStage` yet."""
    return bool(_ever_entered)


@contextmanager
def entered_stages() -> Iterator[set[int]]:
    """Yields a set that fills with the stages entered in this thread, even those without calls."""
    entered: set[int] = set()
    with _entered.bound_to(entered):
        yield entered


_stage = ScopedValue[int | None](None)
_is_allowed = ScopedValue(False)
_entered = ScopedValue[set[int] | None](None)
_ever_entered: set[int] = set()
