"""How values of the state continue after rounds of three replicas, worked out by hand."""

import jax.numpy as jnp
import numpy as np

from millrace.programs.replicas.state_rules import MergeRule, Rule, begin, end, merged, shares

COUNTER, MEAN = Rule(MergeRule.COUNTER, np.int32(2)), Rule(MergeRule.AVERAGED)
LAST, SAME = Rule(MergeRule.LAST), Rule(MergeRule.UNCHANGED)


def test_a_counter_goes_on_as_if_the_batches_came_one_after_the_other():
    rules, values = [COUNTER, MEAN], [jnp.int32(10), jnp.float32(0.5)]
    assert [begin(rules, values, replica) for replica in range(3)] == [
        [10, 0.5],
        [12, 0.5],
        [14, 0.5],
    ]
    (after, _) = end(rules, values, [jnp.int32(99), jnp.float32(1.5)], None, 3)
    assert after == 16


def test_a_replica_without_a_batch_keeps_what_it_had():
    old, new = [jnp.int32(1), jnp.float32(1), jnp.int32(1)], [jnp.int32(7)] * 3
    rules = [COUNTER, MEAN, SAME]
    assert end(rules, old, new, jnp.array(True), 2) == [5, 7, 1]
    assert end(rules, old, new, jnp.array(False), 2) == [5, 1, 1]


def test_means_and_the_last_value_are_of_the_replicas_that_had_a_batch():
    rules = [MEAN, LAST, LAST, SAME]
    replicas = [  # the third had none, and has what the round before left
        ([1.0, 5, True, 4], True, False),
        ([2.0, 6, False, 4], True, True),
        ([9.0, 7, True, 4], False, False),
    ]
    values = [
        [jnp.float16(a), jnp.int32(b), jnp.bool_(c), jnp.int32(d)] for (a, b, c, d), *_ in replicas
    ]
    given = [
        shares(rules, value, had, last)
        for value, (_, had, last) in zip(values, replicas, strict=True)
    ]
    sums = [sum(each) for each in zip(*given, strict=True)]
    for value in values:
        found = merged(rules, value, sums, 2)
        assert [v.tolist() for v in found] == [1.5, 6, False, 4]
        assert [v.dtype.name for v in found] == ["float16", "int32", "bool", "int32"]
