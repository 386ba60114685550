"""Loops of the user's own: functions keep their types through millrace."""

from typing import assert_type

import jax

import millrace

strategy = millrace.Strategy()


@millrace.compile
def double(value: jax.Array, times: int = 1) -> jax.Array:
    return value * 2**times


assert_type(double(jax.numpy.ones(3)), jax.Array)
assert_type(strategy.run(double, [jax.numpy.ones(3)]), jax.Array)
double(jax.numpy.ones(3), time=2)  # pyright: ignore[reportCallIssue]
double.nonsense()  # pyright: ignore[reportAttributeAccessIssue]


def body(total: jax.Array) -> jax.Array:
    return total + 1


queue = millrace.OutfeedQueue("last")
millrace.OutfeedQueue(mode="newest")  # pyright: ignore[reportArgumentType]
millrace.repeat(10, body, jax.numpy.zeros(()))
millrace.repeat("10", body)  # pyright: ignore[reportArgumentType]
loss, gradients = millrace.value_and_grad(lambda: 1.0, [])
assert_type(loss, float)
