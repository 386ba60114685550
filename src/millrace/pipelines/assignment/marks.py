"""`PipelineStage(i)`: what is called or made inside belongs to stage `i`.

    with strategy.scope():
        x = inputs = keras.Input((32,))
        with millrace.PipelineStage(0):
            x = keras.layers.Dense(16)(x)
        with millrace.PipelineStage(1):
            x = keras.layers.Dense(4)(x)
        model = keras.Model(inputs, x)

Graph nodes and layers remember the stage in which they were made. In the `call` of a subclassed
model nothing remembers; there the stage is the name scope `mr.S<i>` of whatever JAX traces.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import jax
import numpy as np

from millrace._compat.keras_graph import is_calling, record_stages
from millrace.arguments import checked
from millrace.errors import OptionError, PlanError


class PipelineStage:
    """Puts layer calls, and the layers made, into a pipeline stage.

    The stage of a call wins over that of the place where its layer was made.

    Args:
        stage: its number, from 0 on. The values of a model flow from lower to higher stages.

    Raises:
        OptionError: if `stage` is negative or no whole number.
        PlanError: on entry, inside another stage, or outside of both a strategy's scope and the
            `call` of a model.
    """

    @checked
    def __init__(self, stage: int):
        self.stage = _number(stage)

    def __enter__(self) -> "PipelineStage":
        _check(self.stage)
        self._scope: Any = jax.named_scope(f"mr.S{self.stage}")
        self._scope.__enter__()
        _here.stage = self.stage
        _here.entered.add(self.stage)
        _ever_entered.add(self.stage)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _here.stage = None
        self._scope.__exit__(kind, error, trace)


def _number(given: Any) -> int:
    stage = int(given) if isinstance(given, np.integer) else given
    if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
        raise OptionError(
            f"A pipeline stage is a whole number from 0 on. Received: PipelineStage({stage!r}). "
            "Set 0 for the first stage, 1 for the one after it."
        )
    return stage


def _check(stage: int) -> None:
    if _here.stage is not None:
        raise PlanError(
            f"PipelineStage({stage}) was entered inside PipelineStage({_here.stage}): a call "
            "belongs to one stage. Leave the outer `with` before entering the next."
        )
    if not _here.allowed and not is_calling():
        raise PlanError(
            f"PipelineStage({stage}) was entered outside of a strategy's scope, where no model "
            "would use it. Move it into `with strategy.scope():`, or into the `call` of a model."
        )


def current_stage() -> int | None:
    """Returns the stage of this thread, or None outside of `PipelineStage`."""
    return _here.stage


@contextmanager
def stages_allowed() -> Iterator[None]:
    """Lets `PipelineStage` be entered in this thread. A strategy's scope is one of these."""
    record_stages(current_stage)
    _here.allowed += 1
    try:
        yield
    finally:
        _here.allowed -= 1


def stages_were_entered() -> bool:
    """Whether any thread of this process has entered a `PipelineStage` yet."""
    return bool(_ever_entered)


@contextmanager
def entered_stages() -> Iterator[set[int]]:
    """Yields a set that fills with the stages entered in this thread, those without calls too."""
    before, _here.entered = _here.entered, set()
    try:
        yield _here.entered
    finally:
        _here.entered = before


class _Here(threading.local):
    def __init__(self) -> None:
        self.stage: int | None = None
        self.allowed = 0
        self.entered: set[int] = set()


_here = _Here()
_ever_entered: set[int] = set()
