"""The methods that attachment adds to a model, among them those that assign stages."""

from collections.abc import Callable

from millrace.errors import OptionError
from millrace.fit.controller import Controller
from millrace.options import whole_number
from millrace.pipelines.assignment.assignment import AnyAssignment
from millrace.pipelines.assignment.balance import balanced, stage_summary
from millrace.precompile.precompile import precompile
from millrace.strategy.setters import SETTERS


def set_pipeline_stage_assignment(
    controller: Controller, assignment: object, *, num_stages: int | None = None
) -> None:
    """Chooses the stage of each layer call.

    Args:
        controller: of the model whose method this becomes.
        assignment: for a Sequential a list of whole numbers, one for each layer; for any model
            the list of `get_pipeline_stage_assignment`, with stages set. `"auto"` balances the
            FLOPs of the calls over `num_stages`.
        num_stages: of `"auto"`.

    Raises:
        OptionError: if the list does not fit the model, has gaps, or flows backwards.
        ModelError: if it is a subclassed model, or `"auto"`, and the model is not built.
    """
    if isinstance(assignment, str):
        controller.setup.stages.put(balanced(controller.model, assignment, num_stages))
    elif num_stages is not None:
        raise OptionError(
            f"num_stages={num_stages} goes with the assignment 'auto'. A list has its own number "
            "of stages: leave num_stages out."
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
    for line in stage_summary(controller.model, controller.setup.stages.assignment(), line_length):
        (print_fn or print)(line)


METHODS: tuple[Callable[..., object], ...] = (
    *SETTERS,
    precompile,
    set_pipeline_stage_assignment,
    get_pipeline_stage_assignment,
    reset_pipeline_stage_assignment,
    print_pipeline_stage_assignment_summary,
)
