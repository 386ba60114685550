"""Memory reports and plans of transformers for devices that are not here: time, and host memory.

Claims: on two cores the memory report of a transformer with 12 blocks (134 million parameters) for
an H100 takes less than a minute, and its plan for two thirds of the memory that plain training
takes less than three; the report of one with 32 blocks (6.7 billion) in stages over eight H100s
takes less than ten minutes and 6 GB of host memory. The peer is the report of the smaller one for
the CPU of this machine.

Without the compiler for GPUs (`make test-targets` installs it) only the peer is measured.
"""

import resource
import time

import millrace  # isort: skip
import keras
from keras import layers

import harness
from millrace.errors import DeviceError


def main() -> None:
    """Prints the seconds of each."""
    options = harness.arguments(__doc__)
    harness.header("Reports and plans of transformers for an H100")
    large, medium = (2, 1) if options.small else (32, 12)
    width = 256 if options.small else 4096
    # Begun with, since the memory of a process is the most that it has ever taken.
    try:
        strategy = millrace.Strategy(target="h100:8")
    except DeviceError as error:
        print(f"only for the CPU: {error}\n")
    else:
        report_in_stages(strategy, large, width)
        strategy = millrace.Strategy(target="h100")
        model, batch = decoder(strategy, medium, options.small)
        seconds, report = timed(lambda: strategy.memory_report(model, batch))
        line("memory report, H100", seconds, report.devices[0].peak)
        on_target = seconds
        memory = int(report.devices[0].peak * 2 / 3)
        seconds, plan = timed(lambda: strategy.plan(model, batch, memory=memory))
        line(f"plan for {memory / 1e9:.1f} GB, H100", seconds, plan.chosen.peak)
        print(
            f"bytes of the plan above its memory = {max(0, plan.chosen.peak - memory)}   claim <= 0"
        )
    strategy = millrace.Strategy(1)
    model, batch = decoder(strategy, medium, options.small)
    seconds, report = timed(lambda: strategy.memory_report(model, batch))
    line("memory report, CPU", seconds, report.devices[0].peak)
    if "on_target" in locals():
        print(f"\nmemory report, H100 / CPU = {on_target / seconds:.2f}")


def report_in_stages(strategy: millrace.Strategy, blocks: int, width: int) -> None:
    """Reports the memory of a large transformer in eight stages."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    begin = time.perf_counter()
    with strategy.scope():
        tokens = keras.Input((2048,), dtype="int32")
        x = layers.Embedding(32_000, width)(tokens)
        for _ in range(blocks):
            y = layers.RMSNormalization()(x)
            x += layers.GroupQueryAttention(128, width // 128, width // 128)(
                y, y, use_causal_mask=True
            )
            y = layers.RMSNormalization()(x)
            gate = layers.Dense(width * 43 // 16, "silu", use_bias=False)(y)
            y = gate * layers.Dense(width * 43 // 16, use_bias=False)(y)
            x += layers.Dense(width, use_bias=False)(y)
        logits = layers.Dense(32_000, use_bias=False)(layers.RMSNormalization()(x))
        model = keras.Model(tokens, logits)
    compile_for_tokens(model)
    model.set_pipeline_stage_assignment("auto", num_stages=8)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=16)
    batch = (((1, 2048), "int32"), ((1, 2048), "int32"))
    report = strategy.memory_report(model, batch)
    seconds = time.perf_counter() - begin
    peak = max(device.peak for device in report.devices)
    name = f"memory report, {model.count_params() / 1e9:.1f} billion parameters, 8 stages"
    line(name, seconds, peak)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    weights = 4 * model.count_params()
    print(f"host memory so far: {resident / 1e9:.2f} GB; of the weights = {resident / weights:.3f}")


def decoder(strategy: millrace.Strategy, blocks: int, is_small: bool):
    """Returns a transformer and a batch for it."""
    width, length = (64, 32) if is_small else (768, 512)
    keras.config.set_dtype_policy("mixed_bfloat16")
    with strategy.scope():
        tokens = keras.Input((length,), dtype="int32")
        x = layers.Embedding(32_000, width)(tokens)
        for _ in range(blocks):
            y = layers.LayerNormalization()(x)
            x += layers.MultiHeadAttention(width // 64, 64)(y, y, use_causal_mask=True)
            y = layers.LayerNormalization()(x)
            x += layers.Dense(width)(layers.Dense(4 * width, "gelu")(y))
        model = keras.Model(tokens, layers.Dense(32_000)(x))
    compile_for_tokens(model)
    rows = ((2 if is_small else 64, length), "int32")
    return model, (rows, rows)


def compile_for_tokens(model: keras.Model) -> None:
    """Compiles a model that predicts tokens."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4), loss)


def timed(work):
    """Returns the seconds of some work, and its result."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def line(name: str, seconds: float, peak: int) -> None:
    """Prints one result."""
    print(f"{name:<56} {seconds:7.1f} s   peak of a device {peak / 1e9:8.2f} GB", flush=True)


if __name__ == "__main__":
    main()
