"""The compile log as tables: what was compiled, how long it took, and why.

    #  began     program    model  batch         how       trace  lower  XLA  peak  code
    1  09:15:02  train_run  mlp    float32[4,8]  compiled   0.10   0.05  0.20   ...

    #  program    model  batch         how       time  peak       on a narrow terminal

    1  train_run: the first program of the model

The number of a row leads to its cause below the table.
"""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.base.records.compilation import CompileRecord, Origin, compile_totals
from millrace.base.records.memory import bytes_text
from millrace.base.records.printable import printable
from millrace.base.records.table_text import RecordRows, plain_table

_WIDE_WIDTH = 120  # columns of a terminal at which the parts of the time fit in
_LATEST = 30  # rows of a log that is not shown by the command
NumberedRecords = Sequence[tuple[int, CompileRecord]]  # with row numbers of the whole log


class CompileRecords(RecordRows[CompileRecord]):
    """Compilations in order. They print as tables of the latest ones, with their causes."""

    __slots__ = ()

    def _print(self, console: Console) -> None:
        self.print_some(console, [*enumerate(self, 1)][-_LATEST:])

    def print_some(self, console: Console, shown: NumberedRecords) -> None:
        """Prints some of the records, with their causes, and the totals of all."""
        if shown:
            console.print(_table(shown, console.width >= _WIDE_WIDTH))
            console.print("")
            console.print(_causes(shown))
            console.print("")
        console.print(_totals(self), markup=False, soft_wrap=True)


def _table(records: NumberedRecords, is_wide: bool) -> Table:
    has_code = is_wide and any(each.code_bytes for _, each in records)
    texts = ("#", *(("began",) if is_wide else ()), "program", "model", "batch", "how")
    numbers = (*((">trace", ">lower", ">XLA") if is_wide else (">time",)), ">peak")
    table = plain_table(*texts, *numbers, *((">code",) if has_code else ()))
    table.columns[0].no_wrap = True
    for number, record in records:
        began = time.strftime("%H:%M:%S", time.localtime(record.began))
        style = "yellow" if record.is_recompilation else None
        how = record.origin.value if record.is_executable else f"switch x{record.count}"
        texts = map(printable, (record.program, record.model, record.batch, how))
        cells = [str(number), *((began,) if is_wide else ()), *map(Text, texts)]
        table.add_row(*cells, *_costs(record, is_wide, has_code), style=style)
    return table


def _costs(record: CompileRecord, is_wide: bool, has_code: bool) -> tuple[str, ...]:
    if not record.is_executable:
        return ()
    parts = (record.trace_seconds, record.lower_seconds, record.compile_seconds)
    seconds = parts if is_wide else (record.seconds,)
    sizes = (record.peak_bytes, *((record.code_bytes,) if has_code else ()))
    return *(f"{each:.2f} s" for each in seconds), *(bytes_text(e) if e else "" for e in sizes)


def _causes(records: NumberedRecords) -> Table:
    """Returns the cause of each compilation, followed by its remedy."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for number, record in records:
        if record.is_executable:  # the row of a switch names both programs
            again = " is compiled again" if record.is_recompilation else ""
            cause = f"{printable(record.program)}{again}: {printable(record.cause)}"
            table.add_row(str(number), Text(cause))
            if record.remedy:
                table.add_row("", Text(printable(record.remedy), style="green"))
    return table


def _totals(records: Sequence[CompileRecord]) -> str:
    totals = compile_totals(records)
    origins = totals.by_origin
    kinds = ", ".join(f"{origins[each]} {each.value}" for each in Origin if origins[each])
    return (
        f"executables      {totals.executables}{f' ({kinds})' if kinds else ''}, "
        f"{totals.seconds:.2f} s\n"
        f"recompilations   {totals.recompilations}, {totals.recompilation_seconds:.2f} s lost\n"
        f"switches         {totals.switches}"
    )
