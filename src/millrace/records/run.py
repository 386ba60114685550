"""Where the time of a strategy's runs went."""

from dataclasses import dataclass

from millrace.records.feeds import FeedStatistics
from millrace.records.pipeline import PipelineStatistics


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Totals over everything that ran under one strategy so far."""

    executions: int  # calls of the loop's function: `steps_per_execution` steps each
    dispatches: int  # calls of compiled code behind them
    compilations: int
    compile_seconds: float
    infeed: FeedStatistics
    pipeline: PipelineStatistics  # of the pipelined function that ran last
