"""What a memory report prints, of records alone."""

import pytest

from millrace.base.records.memory import LiveBuffer, by_layer
from millrace.base.records.memory_report import (
    DeviceMemory,
    MemoryChange,
    MemoryReport,
    StageMemory,
)

pytestmark = pytest.mark.quick


def report(*alive, changes=()):
    total = sum(each.nbytes for each in alive)
    stage = StageMemory(
        stage=0,
        parameters=0,
        optimizer_state=0,
        accumulators=0,
        temporaries=total,
        in_flight=0,
        batches=0,
        other=0,
    )
    device = DeviceMemory(("cpu:0",), "train_run", (stage,), alive)
    return str(MemoryReport("net", "float32[4,2]", (device,), changes))


def test_tensors_of_a_layer_are_added_up():
    sizes = [("x", 30), ("", 50), ("x", 30)]
    alive = [LiveBuffer("tensor", nbytes, layer, "dot") for layer, nbytes in sizes]
    assert [(each.layer, each.nbytes, each.tensors) for each in by_layer(alive)] == [
        ("x", 60, 2),
        ("(no layer)", 50, 1),
    ]


def test_of_many_layers_the_small_ones_share_a_row():
    text = report(*(LiveBuffer("t", 1000 - k, f"layer_{k}", "dot") for k in range(20)))
    table = text.partition("by layer\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) == 1 + 12 + 1
    assert table[1].split() == ["1.00", "KB", "5.0%", "1", "layer_0"]
    assert table[-1].split() == ["7.88", "KB", "39.8%", "8", "8", "other", "layers"]


def test_names_with_brackets_are_printed_as_they_are():
    change = MemoryChange("model.set_options(x=[red])", 10, 0.0, True)
    text = report(LiveBuffer("tensor[red]", 9, "block[red]", "parameter"), changes=(change,))
    assert text.count("block[red]") == 2
    assert "tensor[red]" in text
    assert "x=[red]" in text
