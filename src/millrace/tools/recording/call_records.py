"""The records of one call of fit, evaluate or predict, in a directory of their own.

A strategy may have a directory, too, and gets the same records as without. Other models of the
strategy may run at the same time: what belongs to them does not come here.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from millrace.base.records.compilation import CompileRecord
from millrace.programs.plan import Mode
from millrace.run.fit.controller import Controller
from millrace.tools.recording.run import RecordedRun


class CallRecords:
    """Takes the records of one call; a `millrace.base.records.sinks.RecordSink`."""

    def __init__(self, run: RecordedRun, model: str, loops: set[int]):
        """Takes nothing yet.

        Args:
            run: that gets them.
            model: its name.
            loops: the numbers that its loop has in records.
        """
        self.run = run
        self._model, self._loops = model, loops

    @property
    def process(self) -> int:
        """The number of this process in the run."""
        return self.run.directory.process

    @property
    def path(self) -> pathlib.Path:
        """The directory of the run."""
        return self.run.directory.path

    def add(self, *records: object) -> None:
        """Takes records of the same kind, those of this call."""
        own = [record for record in records if self._has(record)]
        self.run.compilations.update(each for each in own if isinstance(each, CompileRecord))
        self.run.directory.add(*own)

    def _has(self, record: object) -> bool:
        model = getattr(record, "model", None) or self._model
        loop = getattr(record, "loop", getattr(record, "number", None))
        return model == self._model and (loop is None or loop in self._loops)


def record_call(
    controller: Controller, run: RecordedRun, mode: Mode, arguments: Mapping[str, Any]
) -> None:
    """Writes the records of the running call of a model into the directory of a run, too.

    Args:
        controller: of the model.
        run: that gets the records until the call ends.
        mode: of the call.
        arguments: of the call, as callbacks know them.
    """
    totals, functions = controller.totals, controller.functions
    if totals.recorders is None or run.directory in totals.sinks:
        return  # the strategy writes there anyway
    if any(isinstance(each, CallRecords) and each.run is run for each in totals.sinks):
        return  # the validation of a fit
    run.take_part(controller.setup.devices)
    loops = {controller.loop}
    records = CallRecords(run, controller.model.name, loops)
    totals.sinks.put_in(records)
    for compilation in totals.compile_log.records:  # before this call, too
        if compilation.model == controller.model.name and compilation not in run.compilations:
            records.add(compilation)
    writer = functions.recorder
    if writer is None:
        writer = totals.recorders.begin(controller.setup, controller.loop, mode, arguments)
        functions.recorder = writer
    else:
        loops.add(writer.record.number)
        writer.write()

    def has_ended() -> None:
        totals.sinks.take_out(records)
        run.loop_has_ended(arguments.get("verbose"))

    if writer is None:  # its error is in the log
        totals.sinks.take_out(records)
    else:
        writer.at_end.append(has_ended)
        if run.page is not None:
            writer.at_epoch.append(run.page.epoch_has_ended)
