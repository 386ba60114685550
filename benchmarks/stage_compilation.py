"""Compilation of a pipeline of equal stages, compared with that of one stage.

Claim: the programs of twelve transformer blocks in four stages take at most 1.3x the time of those
of one stage, the second, on two cores without a cache. Equal programs are compiled once, and
different ones in parallel. The peer is the same pipeline compiled one program after another without
sharing.

    all, as they are      from the lowering of the first program to the end of the last
    one stage             the same of the programs of stage 1 only
    one after another     all, in one thread, without sharing

The time to trace and cut the model comes before, and is printed separately.
"""

import os

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import statistics
import time

import millrace  # isort: skip
import jax
import keras
from keras import layers

import harness
from millrace.compilation.executables.sharing import sharing
from millrace.run.pipelines.programs.executables import StageExecutables

CLAIM = 1.3
STAGES = 4
STRATEGY = millrace.Strategy(f"cpu:{STAGES}", cache_dir=None)  # before JAX starts its devices


def block(x, width):
    """One transformer block."""
    hidden = layers.LayerNormalization()(x)
    hidden = layers.MultiHeadAttention(4, width // 4)(hidden, hidden)
    x = x + hidden
    hidden = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(width)(hidden)


def pipeline(blocks: int, width: int):
    """Four stages with the same number of blocks; the last one has the loss."""
    with STRATEGY.scope():
        x = inputs = keras.Input((64, width))
        for stage in range(STAGES):
            with millrace.PipelineStage(stage):
                for _ in range(blocks // STAGES):
                    x = block(x, width)
        model = keras.Model(inputs, x)
    model.compile("adam", "mse", steps_per_execution=4)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    return model


def measure(blocks: int, width: int, form: str) -> tuple[float, float]:
    """Returns the seconds of tracing and cutting, and of making the executables."""
    jax.clear_caches()
    sharing.clear()
    spent: list[float] = []
    prepare = StageExecutables.prepare

    def timed(self, builder, wanted):
        wanted = [each for each in wanted if form != "one stage" or each[1] == 1]
        begin = time.perf_counter()
        if form == "one after another":
            for name, stage in wanted:
                sharing.clear()
                self.find(builder, name, stage)
        else:
            prepare(self, builder, wanted)
        spent.append(time.perf_counter() - begin)
        raise Done

    StageExecutables.prepare = timed
    model = pipeline(blocks, width)
    spec = ((8, 64, width), "float32")
    begin = time.perf_counter()
    try:
        STRATEGY.memory_report(model, (spec, spec))
    except Done:
        pass
    finally:
        StageExecutables.prepare = prepare
    return time.perf_counter() - begin - spent[0], spent[0]


class Done(BaseException):
    """Ends a report once everything is compiled."""


def main() -> None:
    """Times the three forms in turn, and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=5)
    harness.header("Compilation: a pipeline of equal stages")
    blocks, width = (4, 32) if options.small else (12, 128)
    forms = ("all", "one stage", "one after another")
    times: dict[str, list[float]] = {form: [] for form in forms}
    traced = []
    for turn in range(-1, options.rounds):  # the first round is a warm-up
        for form in forms if turn % 2 == 0 else reversed(forms):
            tracing, compiling = measure(blocks, width, form)
            if turn >= 0:
                times[form].append(compiling)
                traced.append(tracing)
    print(f"{blocks} blocks of width {width} in {STAGES} stages")
    for form, values in {"tracing and cutting": traced, **times}.items():
        low, high = min(values), max(values)
        print(f"  {form:<22} {statistics.median(values):6.2f} s ({low:.2f}-{high:.2f})")
    print()
    print(harness.ratio("all / one after another", times["all"], times["one after another"])[1])
    line = harness.ratio("all / one stage", times["all"], times["one stage"])[1]
    print(f"{line}   claim <= {CLAIM}x")


if __name__ == "__main__":
    main()
