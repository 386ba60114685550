import pytest

from millrace.plan import MAX_UNROLLED_EQUATIONS, LoopForm, Mode, choose_loop_form

CONV = {"conv_general_dilated": 3, "add": 297}


def test_training_with_convolutions_on_cpu_is_unrolled():
    assert choose_loop_form(Mode.TRAIN, "cpu", CONV) == LoopForm(unroll=8)


@pytest.mark.parametrize(
    ("mode", "platform", "primitives"),
    [
        (Mode.TEST, "cpu", CONV),
        (Mode.PREDICT, "cpu", CONV),
        (Mode.TRAIN, "gpu", CONV),
        (Mode.TRAIN, "tpu", CONV),
        (Mode.TRAIN, "cpu", {"dot_general": 3}),
    ],
)
def test_everything_else_is_a_loop(mode, platform, primitives):
    assert choose_loop_form(mode, platform, primitives).is_loop


def test_a_large_step_is_unrolled_less():
    def unroll(equations):
        return choose_loop_form(
            Mode.TRAIN, "cpu", {"conv_general_dilated": 1, "add": equations - 1}
        ).unroll

    assert unroll(MAX_UNROLLED_EQUATIONS // 3) == 3
    assert unroll(MAX_UNROLLED_EQUATIONS * 2) == 1
