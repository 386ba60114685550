"""The result of `Strategy.plan`: ranked alternatives, and the model to apply them to."""

from dataclasses import dataclass, field

import keras

from millrace.base.records.training_plan import PlanRecord
from millrace.errors import ModelError, OptionError
from millrace.run.fit.controller import controller_of
from millrace.tools.planning.applying import apply_update


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingPlan(PlanRecord):
    """A plan for the training of a model, made by `strategy.plan(model, batch_spec, memory)`.

        plan = strategy.plan(model, (x[:512], y[:512]), memory="12GB")
        print(plan)
        plan.apply()
        model.fit(x, y, batch_size=plan.batch_size)

    Attributes:
        model: name of the model.
        batch: shapes and dtypes of all rows of one weight update.
        devices: names of the strategy's devices.
        memory: bytes of one device.
        is_measured: whether times are measured.
        compilations: trainings that were compiled.
        alternatives: the fastest that fits first.
    """

    planned: keras.Model | None = field(default=None, repr=False, compare=False)

    def apply(self, number: int = 1, *, model: keras.Model | None = None) -> int:
        """Sets the options, stages and `steps_per_execution` of an alternative on the model.

        Later calls replace those of earlier ones. `compile` sets `steps_per_execution` anew, so
        compile the model before.

        Args:
            number: of the alternative in the table, from 1.
            model: a compiled model of a strategy; None for the one that was planned. A plan that
                was loaded needs it.

        Returns:
            The `batch_size` for `fit`: rows of one batch of a replica.

        Raises:
            OptionError: if there is no such alternative, or the plan is for a model with other
                layer calls.
            ModelError: without a model, for one without a strategy, or while it runs.
            PlanError: if the plan is for another number of devices.
        """
        update = self.alternative(number).update
        target = self.planned if model is None else model
        if target is None:
            raise ModelError(
                f"The plan for {self.model!r} was loaded, and knows no model. Call "
                "plan.apply(model=model)."
            )
        controller = controller_of(target)
        if controller is None:
            is_model = isinstance(target, keras.Model)
            shown = repr(target) if is_model else f"an object of type {type(target).__name__}"
            raise ModelError(
                f"apply() takes a model of a strategy. Received: {shown}. Build it in `with "
                "strategy.scope()`, or call strategy.attach(model)."
            )
        if not self.alternative(number).fits:
            raise OptionError(
                f"Alternative {number} needs {self.alternative(number).peak:,} bytes, and the "
                f"memory is {self.memory:,}. Make a plan with more memory, or with fewer rows."
            )
        apply_update(controller, update)
        return update.batch_size
