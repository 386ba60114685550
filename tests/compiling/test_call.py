import functools
import gc

import jax
import numpy as np

from millrace.compilation.executables.call_description import name_of, number_of, shapes_of


class Thing:
    pass


class Slotted:
    __slots__ = ()

    def __call__(self):
        """Does nothing."""


def test_a_number_means_one_object():
    first, second = Thing(), Thing()
    assert number_of(first) == number_of(first) != number_of(second)
    slotted = Slotted()
    assert number_of(slotted) == number_of(slotted)


def test_no_number_is_given_twice():
    numbers = []
    for _ in range(2000):
        thing = Thing()
        numbers.append(number_of(thing))
        del thing
    gc.collect()
    assert len(set(numbers)) == 2000


def test_names():
    def step():
        """Does nothing."""

    assert name_of(step) == name_of(jax.jit(step)) == name_of(functools.partial(step)) == "step"
    assert name_of(Slotted()) == "Slotted"
    assert name_of(lambda: 0).startswith("<lambda> at test_call.py:")


def test_shapes():
    assert shapes_of(()) == ""
    assert (
        shapes_of([np.zeros((2, 3), np.float32), 1, 0.5, "text"]) == "float32[2,3], int[], float[]"
    )
    assert shapes_of([0] * 9) == ", ".join(["int[]"] * 6) + ", 3 more"
