"""The pass in the name of an operation."""

import pytest

from millrace.run.memory.owners import layer_finder
from millrace.run.memory.passes import kind_finder

kind_of = kind_finder(layer_finder(["dense", "rescaling"]), {"adam", "weight_update"})


@pytest.mark.parametrize(
    ("op_name", "kind"),
    [
        ("jit(run)/jvp(dense)/dot_general", "forward"),
        ("jit(run)/jvp(jvp(dense))/dot_general", "forward"),
        ("jit(run)/rescaling/mul", "forward"),  # data that nothing is differentiated by
        ("jit(run)/transpose(jvp(dense))/transpose", "backward"),
        ("jit(run)/jvp(dense)/transpose", "forward"),
        ("jit(run)/transpose(jvp())/cond/branch_1_fun/jvp(dense)/tanh", "recomputation"),
        ("jit(run)/transpose(jvp())/cond/branch_1_fun/transpose(jvp(dense))/mul", "backward"),
        ("jit(backward)/transpose(jvp(jvp(dense)))/tanh", "recomputation"),
        ("jit(backward)/transpose(jvp(transpose(jvp(dense))))/mul", "backward"),
        ("jit(run)/transpose(jvp(checkpoint))/rematted_computation/dense/tanh", "recomputation"),
        ("jit(run)/while/body/adam/mul", "update"),
        ("jit(run)/while/body/gradient_accumulation/add", "accumulation"),
        ("jit(run)/add;jit(run)/jvp(dense)/mul", "forward"),
        ("jit(run)/while/body/add", ""),
        ("", ""),
    ],
)
def test_the_pass_in_a_name(op_name, kind):
    assert kind_of(op_name) == kind


def test_the_pass_of_names_that_tell_none():
    default = kind_finder(layer_finder([]), (), "update")
    assert default("jit(apply)/mul") == "update"
    assert default("") == ""
    again = kind_finder(layer_finder(["dense"]), (), repeats=True)
    assert again("jit(backward)/mr.L0/dense/tanh") == "recomputation"
    assert again("jit(backward)/transpose(jvp(dense))/tanh") == "backward"
