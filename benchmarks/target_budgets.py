"""Two budgets for 24 families of models on three devices, two of which are described.

Claim: no peak, as the device's own compiler says it, is above its budget. Each device plans with
its own peaks: what a TPU keeps in its vector memory, or a GPU computes in a library, takes another
choice of recomputation. The peer is plain training on the same device.

Families are measured side by side, each in a process of its own on one core. Without the compilers
of GPU and TPU (`make test-targets` installs them) only the CPU is measured.
"""

import os
import time

import millrace  # isort: skip
import keras

import harness
from families import FAMILIES
from millrace._compat.jax_executables import sizes_of
from millrace.compilation.executables.executable import compiled_of
from millrace.errors import DeviceError
from millrace.programs.plan import Mode
from millrace.run.compiled_loop.budget import OverBudgetError

BUDGETS = (0.6, 0.4)
DEVICES = {"CPU": None, "H100": "h100", "v5e": "v5e"}


def main() -> None:
    """Prints the peaks of every model on every device."""
    options = harness.arguments(__doc__, families="names, with commas between them")
    harness.header(f"Budgets of recomputation for devices that are described, {BUDGETS}")
    names = options.families.split(",") if options.families else list(FAMILIES)
    names = [name for name in names if options.only in name]
    if options.small:
        names = [name for name in names if name == "mlp"] or names[:1]
    print(missing())
    columns = "".join(f"{share:>8}{'':11}" for share in BUDGETS)
    print(f"{'family':<20} {'device':<6} {'plain':>10}  {columns} seconds", flush=True)
    results = [row for rows in harness.side_by_side(measure, names) for row in rows]
    print()
    for line in summary(results):
        print(line)


def missing() -> str:
    """Returns a line about the devices without a compiler."""
    absent = []
    for name, target in DEVICES.items():
        try:
            strategy_for(target)
        except DeviceError:
            absent.append(name)
    return f"without a compiler here: {', '.join(absent) or 'none'}\n"


def strategy_for(target: str | None) -> millrace.Strategy:
    """Returns a strategy for one device."""
    return millrace.Strategy(1) if target is None else millrace.Strategy(target=target)


def summary(results):
    """Returns the lines about all families, for each device."""
    for device in DEVICES:
        rows = [row for row in results if row["device"] == device]
        if rows:
            kept = [share for row in rows for share in row["shares"] if share is not None]
            over = sum(row["over"] for row in rows)
            yield f"peaks above their budget, {device} = {over}   claim <= 0"
            yield f"budgets kept, {device}, of {len(rows) * len(BUDGETS)} = {len(kept)}"


def measure(name: str):
    """Tries the budgets on one model, on every device that there is a compiler for."""
    return [row for device in DEVICES if (row := measure_on(name, device)) is not None]


def measure_on(name: str, device: str):
    """Returns the peaks on a device as shares of plain training; None without its compiler."""
    begin = time.perf_counter()
    try:
        plain = peak_of(name, device)
    except DeviceError:
        return None
    shares, cells, over = [], [], 0
    for budget in BUDGETS:
        try:
            share = peak_of(name, device, budget=budget) / plain
        except OverBudgetError as error:
            shares.append(None)
            cells.append(f"refused ({error.least / plain:.3f})")
            continue
        over += share > budget
        shares.append(share)
        cells.append(f"{share:.3f}")
    seconds = time.perf_counter() - begin
    text = "".join(f"{cell:>8}{'':{max(0, 11 - max(0, len(cell) - 8))}}" for cell in cells)
    print(f"{name:<20} {device:<6} {plain / 2**20:>6.1f} MiB  {text} {seconds:7.1f}", flush=True)
    return {"device": device, "shares": shares, "over": over}


def peak_of(name: str, device: str, **options: float) -> int:
    """Returns the peak of training on a device, as its compiler says it."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    strategy = strategy_for(DEVICES[device])
    with strategy.scope():
        model, shapes = FAMILIES[name]()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    if options:
        model.set_recomputation_options(**options)
    x = [(shape, "float32") for shape in shapes]
    rows = shapes[0][0]
    outputs = getattr(model, "outputs", None)
    y = [((rows, *output.shape[1:]), "float32") for output in outputs or ()]
    y = y or [((rows, 1), "float32")]  # of a subclassed model
    batch = (x if len(x) > 1 else x[0], y if len(y) > 1 else y[0])
    peaks: list[int] = []

    def add(new) -> None:
        if not new.is_trial and new.plan.mode is Mode.TRAIN:
            peaks.append(sizes_of(compiled_of(new.executable)).peak_bytes)

    # Not a memory report: where a budget is refused, that looks for other changes, too.
    strategy._totals.compile_log.observers.append(add)
    model.precompile(batch)
    return max(peaks)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
