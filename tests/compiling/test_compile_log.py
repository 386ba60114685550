"""The compile log, of records alone."""

import logging

import pytest

from millrace.base.records.compilation import CompileRecord
from millrace.compilation.executables.log import CompileLog

RECORD = CompileRecord(
    model="net",
    program="train_run",
    batch="float32[4,8]",
    capacity=1,
    unrolled=None,
    trace_seconds=0.1,
    compile_seconds=0.4,
    temporary_bytes=0,
    cause="argument x: shape (4, 8) -> (3, 8)",
    remedy="Use one batch_size in every call.",
    is_recompilation=True,
)


def test_many_recompilations_of_one_program_are_said_once(caplog):
    log = CompileLog()
    with caplog.at_level(logging.WARNING, "millrace"):
        for _ in range(7):
            log.add(RECORD)
        assert caplog.messages == []
        for _ in range(9):
            log.add(RECORD)
    assert caplog.messages == [
        "train_run of 'net' was compiled again 8 times, in 4.0 s. The last time because of "
        "argument x: shape (4, 8) -> (3, 8). Use one batch_size in every call."
    ]
    assert log.seconds == pytest.approx(8.0)


def test_what_is_only_rehearsed_is_not_said(caplog):
    log = CompileLog(is_dry_run=True)
    with caplog.at_level(logging.WARNING, "millrace"):
        for _ in range(9):
            log.add(RECORD)
    assert caplog.messages == []
