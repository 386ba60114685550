import collections
import functools
import json
import math

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millrace.base.checkpoints.plain_values import NotPlainError, decode, encode, host_copy

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
)  # fmt: skip
dtypes = st.sampled_from(
    ["bool", "int8", "uint32", "int64", "float16", "float32", "float64", "complex64", ">f4"]
)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))
plain = st.recursive(
    scalars | arrays | arrays.map(lambda array: array.reshape(-1)[:1].sum()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(collections.deque, st.lists(inner, max_size=3), st.none() | st.integers(0, 5))
        | st.sets(st.text() | st.integers(), max_size=3)
        | st.frozensets(st.tuples(st.booleans(), st.floats(allow_nan=False)), max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.booleans(), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one, other):
    if isinstance(one, float) and type(one) is float:
        return type(other) is float and (
            (math.isnan(one) and math.isnan(other))
            or (one == other and math.copysign(1, one) == math.copysign(1, other))
        )
    if isinstance(one, np.ndarray | np.generic):
        native = one.dtype.newbyteorder("=")
        return (
            isinstance(other, np.generic) == isinstance(one, np.generic)
            and one.shape == other.shape
            and other.dtype == native
            and one.astype(native).tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, collections.deque):
        return one.maxlen == other.maxlen and same(list(one), list(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(map(type, one)) == list(map(type, other)) and same(
            list(one.items()), list(other.items())
        )
    return one == other


@settings(max_examples=200, deadline=None)
@given(plain)
def test_values_come_back_as_they_were(value):
    found = []
    text = json.dumps(encode(value, found), allow_nan=False)
    assert same(value, decode(json.loads(text), found))


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["tuple", "dict", "set", "deque", "bytes", "float", "array", "scalar", "x"]
                ),
                inner,
                max_size=2,
            )
        ),
    )
)
def test_any_json_is_decoded_or_refused(value):
    try:
        decode(value, [np.zeros(3), np.float32(1)])
    except ValueError:
        return


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        np.array(["text"]),
        np.array([None]),
        np.array("2020-01-01", "M8[s]"),
        np.zeros(2, "i4,f4"),
        np.zeros(2, np.longdouble),
        np.ma.array([1, 2], mask=[0, 1]),
        1 << 20_000,
        collections.namedtuple("Pair", "a b")(1, 2),
        functools.reduce(lambda inner, _: [inner], range(60), 0),
    ],
    ids=[
        "object",
        "function",
        "text array",
        "object array",
        "time",
        "record",
        "longdouble",
        "mask",
        "long int",
        "named tuple",
        "deep",
    ],
)
def test_other_values_are_refused(value):
    with pytest.raises(NotPlainError):
        encode([value], [])


def test_keys_of_jax_are_refused():
    with pytest.raises(NotPlainError, match="PRNGKeyArray"):
        encode(jax.random.key(0), [])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_dtypes_of_jax_come_back(dtype):
    found = []
    written = encode([np.ones(3, dtype)], found)
    assert same([np.ones(3, dtype)], decode(written, found))


@pytest.mark.parametrize("number", [1, 2])
def test_a_copy_on_the_host_stays_when_a_step_reuses_the_memory(number):
    mesh = jax.make_mesh((number,), ("x",), devices=jax.devices()[:number])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    value = jax.device_put(np.arange(1000.0), sharding)
    found = host_copy(value)
    for shard in value.addressable_shards:
        assert not np.shares_memory(found, np.asarray(shard.data))
    jax.jit(lambda x: x + 1, donate_argnums=0)(value).block_until_ready()
    assert (found == np.arange(1000.0)).all()
