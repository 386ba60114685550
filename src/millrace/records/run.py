"""Where the time of a strategy's runs went."""

from dataclasses import dataclass

from millrace.records.budget import BudgetChoice
from millrace.records.feeds import FeedStatistics
from millrace.records.pipeline import PipelineStatistics


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Totals over everything that ran under one strategy so far."""

    executions: int  # calls of the loop's function: `steps_per_execution` steps each
    dispatches: int  # calls of compiled code behind them
    compilations: int  # by XLA
    compile_seconds: float  # of tracing, lowering, compiling and reading
    infeed: FeedStatistics
    pipeline: PipelineStatistics  # of the pipelined function that ran last
    cache_hits: int = 0  # executables read from the cache on disk
    shared: int = 0  # executables that an equal program had already
    loaded: int = 0  # executables that another process has exported
    switches: int = 0  # calls of another function than before
    budgets: tuple[BudgetChoice, ...] = ()  # what recomputation budgets have chosen, in order
