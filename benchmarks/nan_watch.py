"""One epoch with NaNWatch on all gradients, compared with one without.

Claim, for an MLP of eight layers and a small transformer: at most 1.03x the time of the same
training without, while all gradients are finite.
"""

import millrace  # isort: skip
import harness
import tensor_statistics as models

CLAIM = 1.03


def measure(size: models.Size, rounds: int) -> list[str]:
    """Prints the rows of one model and returns its ratio as a line."""
    x, y = size.data()
    strategy = millrace.Strategy(devices=1)

    def fit(*callbacks):
        model = strategy.attach(size.model())
        return lambda: model.fit(
            x, y, batch_size=size.batch, epochs=1, verbose=0, callbacks=[*callbacks]
        )

    watch = millrace.callbacks.NaNWatch(directory=None)
    times = harness.paired({"without": fit(), "NaNWatch": fit(watch)}, rounds)
    if watch.found is not None:
        raise RuntimeError(f"{size.name} should train without NaNs: {watch.found}")
    print(f"{size.name}: {size.steps} steps, one execution")
    for name, values in times.items():
        harness.row(name, values, size.steps)
    _, cost = harness.ratio(f"{size.name}: NaNWatch / without", times["NaNWatch"], times["without"])
    return [f"{cost}   claim <= {CLAIM}x"]


def main() -> None:
    """Runs all models and prints the ratios last."""
    options = harness.arguments(__doc__, rounds=9)
    harness.header("NaNWatch on all gradients: time per step inside fit")
    lines = []
    for size in models.SIZES:
        if options.only in size.name and not (options.small and "1024" in size.name):
            lines += measure(size, options.rounds)
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()
