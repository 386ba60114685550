"""The rules of IPU programs, in the place of those of millrace.

devices of a replica           -> rounded up to a power of two
data                           -> known shapes and numbers, whole batches
steps of an execution          -> whole updates, whole epochs
micro-batches of a pipeline    -> multiples of those that run at once
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.errors import OptionError
from millrace.ipu.inert import inert
from millrace.ipu.keras.extensions import arguments, data_checks, guards, lengths
from millrace.ipu.keras.extensions.settings import Settings
from millrace.ipu.keras.extensions.shared_variables import check_shared_variables
from millrace.ipu.ops.length_rule import check_length
from millrace.options import refuse_unknown, whole_number
from millrace.plan import Mode
from millrace.strategy.controller import Controller
from millrace.strategy.rules import Rules

logger = logging.getLogger("millrace")

_OF_TRAINING = (
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
)
_OUTFEED = ("buffer_depth", "optimise_latency", "optimize_latency")
_INFEED = ("prefetch_depth", "optimise_latency", "optimize_latency")


class IPURules(Rules):
    """The rules of IPU programs, for one model."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.epochs = 1  # of the running loop

    def devices_of_replica(self, stages: int, mapping: Sequence[int], number: int) -> int:
        """Returns a power of two; see `lengths`."""
        return lengths.devices_of_replica(stages, mapping, number)

    def check(self, controller: Controller, mode: Mode) -> None:
        """Refuses overrides, queue options, and pipelines that the IPU would not run.

        Raises:
            ModelError: for an override.
            OptionError: for an option.
            PlanError: for a number of micro-batches.
        """
        assignment, model = controller.stages.assignment(), controller.model
        guards.check_overrides(model, assignment is not None)
        self._check_queues()
        trains = mode is Mode.TRAIN
        if trains and (assignment is not None or controller.accumulation.steps > 1):
            guards.check_optimizer(model)
        if assignment is None:
            return
        mapping = controller.options.pipelining.devices_of(assignment.num_stages)
        check_shared_variables(model, assignment, mapping)
        if not trains:
            self._note_inert(controller)
            return
        steps = self.settings.pipelining.steps
        if steps is None:
            raise OptionError(
                f"The pipelined model {model.name!r} was not told how many micro-batches make one "
                f"weight update. Call model.set_pipelining_options({arguments.STEPS}=...) before "
                "fit."
            )
        self._check_stages(assignment.num_stages)
        if assignment.num_stages > 1:  # else refused as a pipeline
            check_length(self.settings.schedule, mapping, steps, training=True)

    def check_data(
        self, controller: Controller, mode: Mode, adapter: Any, arguments: Mapping[str, Any]
    ) -> None:
        """Refuses data; see `data_checks`."""
        epochs = self.epochs if mode is Mode.TRAIN else 1
        data_checks.check_batches(adapter, arguments, mode, epochs)

    def steps_of_execution(
        self,
        controller: Controller,
        mode: Mode,
        steps_per_execution: int,
        steps: int | None,
        rows: int | None,
    ) -> int:
        """Returns the steps of a full execution; see `lengths`."""
        if steps is None:
            return super().steps_of_execution(controller, mode, steps_per_execution, steps, rows)
        found = lengths.steps_of_execution(controller, mode, steps_per_execution, steps)
        if mode is Mode.TRAIN:
            lengths.log_update(controller, found, steps, rows)
        else:
            lengths.check_inference_length(controller, self.settings, found)
        return found

    def _check_stages(self, number: int) -> None:
        for way in ("forward", "backward"):
            name = f"{way}_propagation_stages_poplar_options"
            given = self.settings.pipelining.more.get(name)
            if given is not None and len(given) != number:
                raise OptionError(
                    f"{name} has {len(given)} entries, and the model has {number} pipeline "
                    "stages. Give one PipelineStageOptions for each."
                )

    def _check_queues(self) -> None:
        setter = "set_infeed_queue_options"
        known = (*_INFEED, "max_block_bytes", "max_resident_bytes")
        self._check_queue(setter, self.settings.infeed, known, "prefetch_depth", 255)
        setter, options = "set_outfeed_queue_options", self.settings.outfeed
        self._check_queue(setter, options, _OUTFEED, "buffer_depth", None)
        if options:
            inert("buffer_depth", "Results wait on the host for whoever reads them, without limit.")

    def _check_queue(
        self, setter: str, given: Mapping[str, Any], known: Any, depth: str, most: int | None
    ) -> None:
        refuse_unknown(setter, [name for name in given if name not in known], known, {})
        if depth in given and whole_number(depth, given[depth], 1) > (most or given[depth]):
            raise OptionError(
                f"{depth} must be at most {most}. Received: {given[depth]}. Set {depth}={most} or "
                f"less in model.{setter}()."
            )

    def _note_inert(self, controller: Controller) -> None:
        """Warns, once for a model, of what does nothing where no weights are updated."""
        given = [name for name in _OF_TRAINING if self.settings.of_either(name)]
        note = f"inference of {controller.model.name}: {given}"
        if given and note not in controller.totals.noted:
            controller.totals.noted.add(note)
            logger.warning(
                "%s have no effect in evaluate and predict of the pipelined model %r: no weights "
                "are updated there.",
                ", ".join(given),
                controller.model.name,
            )
