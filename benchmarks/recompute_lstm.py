"""An LSTM over 2048 steps with boundaries, compared with the same model without recomputation.

Claim: 7 boundaries need at most 0.15x and 15 at most 0.08x the temporary memory of none, at most
1.10x its time, and at most 5 % more memory and time than handwritten JAX with the same cuts:
`jax.checkpoint` of the inner scan, in a scan over chunks.

    none     | keep 2048 steps ............................. | backward                        |
    with 3   | keep (h, c) after each quarter | run the last again | backward | the next ...
"""

import millrace  # isort: skip
import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

import harness

UNITS, FEATURES, BATCH, STEPS = 256, 32, 64, 2
CLAIM_MEMORY, CLAIM_TIME, CLAIM_PEER = {7: 0.15, 15: 0.08}, 1.10, 1.05


def main() -> None:
    """Prints memory, times and the ratios."""
    options = harness.arguments(__doc__, rounds=5)
    length = 64 if options.small else 2048
    harness.header(f"LSTM({UNITS}) over {length} steps, batches of {BATCH}, {STEPS} steps")
    random = np.random.default_rng(0)
    x = random.normal(size=(STEPS * BATCH, length, FEATURES)).astype("float32")
    y = random.normal(size=(STEPS * BATCH, 1)).astype("float32")
    temporary, cases = {}, {}
    for boundaries in (0, 7, 15):
        name = f"millrace, {boundaries}"
        strategy = millrace.Strategy(devices=1)
        model = strategy.attach(make_model(length, boundaries))
        if boundaries:
            model.set_recomputation_options()
        report = strategy.memory_report(model, (x[:BATCH], y[:BATCH]))
        temporary[name] = report.devices[0].stages[0].temporaries
        cases[name] = fit(model, x, y)
    for boundaries in (7, 15):
        name = f"jax, {boundaries}"
        epoch, state, batches = by_hand(x, y, boundaries)
        temporary[name] = epoch.memory_analysis().temp_size_in_bytes
        cases[name] = run_by_hand(epoch, state, batches)
    times = harness.paired(cases, options.rounds)
    for name, values in times.items():
        harness.row(f"{name} ({temporary[name] / 2**20:.0f} MiB)", values, STEPS)
    print()
    for boundaries, claim in CLAIM_MEMORY.items():
        own, peer, none = f"millrace, {boundaries}", f"jax, {boundaries}", "millrace, 0"
        share = temporary[own] / temporary[none]
        print(f"memory: {own} / {none} = {share:.3f}x   claim <= {claim}x")
        print(
            f"memory: {own} / {peer} = {temporary[own] / temporary[peer]:.2f}x   "
            f"claim <= {CLAIM_PEER}x"
        )
        _, line = harness.ratio(f"time: {own} / {none}", times[own], times[none])
        print(f"{line}   claim <= {CLAIM_TIME}x")
        _, line = harness.ratio(f"time: {own} / {peer}", times[own], times[peer])
        print(f"{line}   claim <= {CLAIM_PEER}x")


def fit(model, x, y):
    """Returns one epoch."""
    return lambda: model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)


def make_model(length: int, boundaries: int) -> keras.Model:
    """The model of `examples/recompute_lstm.py`."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((length, FEATURES))
    lstm = keras.layers.LSTM(UNITS, return_state=True, use_cudnn=False)
    ends = [length * (k + 1) // (boundaries + 1) for k in range(boundaries + 1)]
    outputs, state = [], None
    for begin, end in zip([0, *ends], ends, strict=False):
        output, *state = lstm(inputs[:, begin:end], initial_state=state)
        outputs.append(output)
        if end < length:
            state = millrace.layers.RecomputationCheckpoint()(state)
    joined = keras.layers.Concatenate()(outputs) if boundaries else outputs[0]
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(keras.optimizers.SGD(0.001), "mse", steps_per_execution=STEPS)
    return model


def by_hand(x, y, boundaries: int):
    """The same training in JAX alone: SGD over a scan of chunks, each under `jax.checkpoint`."""
    chunks = boundaries + 1
    model = make_model(x.shape[1], boundaries)
    state = [jnp.array(variable.value) for variable in model.trainable_variables]
    batches = (
        jnp.asarray(x).reshape(STEPS, BATCH, *x.shape[1:]),
        jnp.asarray(y).reshape(STEPS, BATCH, 1),
    )

    def loss(weights, x, y):
        kernel, recurrent, bias, dense, dense_bias = weights

        def step(carry, x):
            h, c = carry
            z = x @ kernel + h @ recurrent + bias
            i, f, g, o = jnp.split(z, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), None

        @jax.checkpoint
        def chunk(carry, x):
            carry, _ = lax.scan(step, carry, x)
            return carry, carry[0]

        zeros = jnp.zeros((x.shape[0], UNITS))
        sequence = jnp.moveaxis(x, 1, 0).reshape(chunks, -1, *x.shape[::2])
        _, ends = lax.scan(chunk, (zeros, zeros), sequence)
        joined = jnp.moveaxis(ends, 0, 1).reshape(x.shape[0], -1)
        return jnp.mean((joined @ dense + dense_bias - y) ** 2)

    def epoch(weights, batches):
        def update(weights, batch):
            value, gradients = jax.value_and_grad(loss)(weights, *batch)
            return [w - 0.001 * g for w, g in zip(weights, gradients, strict=True)], value

        return lax.scan(update, weights, batches)

    compiled = jax.jit(epoch, donate_argnums=0).lower(state, batches).compile()
    return compiled, state, batches


def run_by_hand(epoch, state, batches):
    """Returns one epoch of the handwritten training."""
    held = [state]

    def run():
        held[0], losses = epoch(held[0], batches)
        jax.block_until_ready(losses)

    return run


if __name__ == "__main__":
    main()
