"""The methods that attachment adds to a model, among them those that assign stages."""

from collections.abc import Callable
from typing import Literal

from millrace.api.strategy.setters import SETTERS
from millrace.base.options import whole_number
from millrace.base.options.table import AUTO
from millrace.errors import OptionError
from millrace.programs.feeds.block import batch_spec as spec_of
from millrace.run.fit.controller import Controller
from millrace.run.pipelines.assignment.balance import stage_summary
from millrace.run.pipelines.assignment.lists import AnyAssignment
from millrace.run.precompile.described_batch import BatchDescription, batch_of_zeros
from millrace.run.precompile.precompile import precompile


def set_pipeline_stage_assignment(
    controller: Controller,
    assignment: Literal["auto"] | list[int] | list[AnyAssignment],
    *,
    num_stages: int | None = None,
    batch_spec: "BatchDescription | None" = None,
) -> None:
    """Chooses the stage of each layer call.

    Args:
        controller: of the model whose method this becomes.
        assignment: for a Sequential a list of whole numbers, one for each layer; for any model
            the list of `get_pipeline_stage_assignment`, with stages set. `"auto"` balances the
            FLOPs of the calls over `num_stages`: at once where `keras.Input` declares all lengths
            but the rows, otherwise for the first batch of `fit`.
        num_stages: of `"auto"`.
        batch_spec: of `"auto"`: a batch for which it balances the FLOPs at once, as of
            `precompile`.

    Raises:
        OptionError: if the list does not fit the model, has gaps, or flows backwards.
        ModelError: if the model is not built, and it is a subclassed model with a list, or
            `batch_spec` is given.
    """
    if isinstance(assignment, str):
        if assignment.lower() != AUTO:
            raise OptionError(
                f"The assignment is a list of stages or 'auto'. Received: {assignment!r}. Set "
                "set_pipeline_stage_assignment('auto', num_stages=2)."
            )
        if num_stages is None:
            raise OptionError(
                "set_pipeline_stage_assignment('auto') needs the number of stages. Set "
                "num_stages=2 or more: as many as there are devices."
            )
        batch = None if batch_spec is None else spec_of(batch_of_zeros(batch_spec))
        controller.setup.stages.balance(num_stages, batch)
    elif num_stages is not None or batch_spec is not None:
        raise OptionError(
            "num_stages and batch_spec go with the assignment 'auto'. A list has its own number "
            f"of stages: leave them out. Received: num_stages={num_stages}."
        )
    else:
        controller.setup.stages.set(assignment)
    controller.put_options(controller.setup.options)


def get_pipeline_stage_assignment(controller: Controller) -> list[AnyAssignment]:
    """Returns an object for each layer call, in execution order, with its stage or None.

    Set `pipeline_stage` of the objects, and give the list to `set_pipeline_stage_assignment`.

    Raises:
        ModelError: if it is a subclassed model that is not built.
    """
    return controller.setup.stages.get()


def reset_pipeline_stage_assignment(controller: Controller) -> None:
    """Removes the pipeline stages of the model."""
    controller.setup.stages.reset()
    controller.put_options(controller.setup.options)


def print_pipeline_stage_assignment_summary(
    controller: Controller,
    line_length: int | None = None,
    print_fn: Callable[[str], object] | None = None,
) -> None:
    """Prints the stage of each layer call, and the parameters and FLOPs of each stage.

    What the first batch of `fit` will decide is shown as "at fit".

    Args:
        controller: of the model whose method this becomes.
        line_length: characters of a line.
        print_fn: called with each line; None is `print`.

    Raises:
        OptionError: if `line_length` is no number, or `print_fn` no function.
    """
    if line_length is not None:
        whole_number("line_length", line_length, 1)
    if print_fn is not None and not callable(print_fn):
        raise OptionError(
            f"print_fn must be a function of one line. Received: {print_fn!r}. Set print_fn=print, "
            "or leave it out."
        )
    stages = controller.setup.stages
    for line in stage_summary(controller.model, stages.assignment(), stages.batch, line_length):
        (print_fn or print)(line)


METHODS: tuple[Callable[..., object], ...] = (
    *SETTERS,
    precompile,
    set_pipeline_stage_assignment,
    get_pipeline_stage_assignment,
    reset_pipeline_stage_assignment,
    print_pipeline_stage_assignment_summary,
)
