"""Trains every family of `keras.applications` under a strategy and in plain Keras: docs/models.md.

    python tests/equivalence/models_of_keras.py RESULTS.json [--compiler quick] [FAMILY ...]
    python tests/equivalence/models_of_keras.py RESULTS.json --table

A family is a module of `keras.applications`; its smallest model is trained on the smallest pictures
that it takes. What is done is in RESULTS.json after each way of a family, and is not done again.
"""

import argparse
import functools
import inspect
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("MILLRACE_CACHE_DIR", "off")
HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from against_keras import WAYS, Subject, compare, reference  # noqa: E402

from quick_compiler import QuickCompiler  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)

CLASSES = 5
BATCH_SIZE = 4
ROWS = 8  # two batches: one update with accumulation
EPOCHS = 2
# Of each family the constructor that comes first here, or else in the alphabet. A family that is
# not here is trained all the same.
SMALLEST = ("ResNet50", "ResNet50V2", "MobileNetV3Small", "NASNetMobile", "ConvNeXtTiny")
NARROW = {"MobileNet": 0.25, "MobileNetV2": 0.35, "MobileNetV3Small": 0.35}
SMALLEST_PICTURES = {"xception": 71, "inception_v3": 75, "inception_resnet_v2": 75}
RATE = 1e-4
LARGE = 1e-5  # a difference of updates for which the errors of both are measured

# How many blocks a model has, where the function in the family's module that makes all of its sizes
# takes that: (name of the function, its arguments).
THIN = {"width_coefficient": 0.25, "depth_coefficient": 0.1, "default_size": 32}
SHORT: dict[str, tuple[str, dict[str, Any]]] = {
    "convnext": ("ConvNeXt", {"depths": [1, 1, 2, 1], "projection_dims": [16, 32, 48, 64]}),
    "densenet": ("DenseNet", {"blocks": [1, 2, 2, 1]}),
    "efficientnet": ("EfficientNet", THIN),
    "efficientnet_v2": ("EfficientNetV2", {**THIN, "name": "efficientnetv2-b0"}),
    "nasnet": (
        "NASNet",
        {
            "penultimate_filters": 96,
            "num_blocks": 1,
            "stem_block_filters": 32,
            "skip_reduction": False,
        },
    ),
}


def families() -> dict[str, Callable[..., keras.Model]]:
    """Returns the constructor of the smallest model of each family, as Keras lists them."""
    made: dict[str, list[str]] = {}
    for name, member in sorted(vars(keras.applications).items()):
        if inspect.isfunction(member) and "classes" in inspect.signature(member).parameters:
            made.setdefault(member.__module__.rpartition(".")[2], []).append(name)
    chosen = {
        family: next((name for name in SMALLEST if name in names), names[0])
        for family, names in made.items()
    }
    return {family: getattr(keras.applications, name) for family, name in chosen.items()}


# Of those that take no number of blocks: the layer after which a head follows.
FIRST_BLOCKS = {
    "inception_v3": "mixed0",
    "inception_resnet_v2": "block35_2_ac",
    "nasnet": "normal_concat_0",
    "xception": "block3_sepconv2_bn",
}


def first_blocks(make: Callable[..., keras.Model], last: str, **arguments: Any) -> keras.Model:
    """Returns a model up to its layer `last`, and a head."""
    whole = make(**arguments)
    features = keras.layers.GlobalAveragePooling2D()(whole.get_layer(last).output)
    scores = keras.layers.Dense(arguments["classes"], "softmax")(features)
    return keras.Model(whole.input, scores, name=whole.name)


def short_resnet(version: int, widths: Sequence[int] = (16, 32), **arguments: Any) -> keras.Model:
    """Returns a ResNet with a stack of two blocks for each width."""
    module = sys.modules[keras.applications.ResNet50.__module__]
    stack = getattr(module, f"stack_residual_blocks_v{version}")

    def stacks(x: Any) -> Any:
        for number, width in enumerate(widths, 2):
            x = stack(x, width, 2, name=f"conv{number}")
        return x

    return module.ResNet(stacks, version == 2, True, **arguments)


def constructor_of(family: str, full: bool) -> tuple[str, Callable[..., keras.Model]]:
    """Returns what the table calls the model of a family, and what makes it."""
    public = families()[family]
    name = public.__name__
    if not full and family in ("resnet", "resnet_v2"):
        version = 2 if family == "resnet_v2" else 1
        return f"{name}, 4 blocks", functools.partial(short_resnet, version)
    if not full and family in SHORT:
        function, arguments = SHORT[family]
        size = ", ".join(f"{key}={value}" for key, value in list(arguments.items())[:2])
        made = functools.partial(getattr(sys.modules[public.__module__], function), **arguments)
        name, public = f"{function}({size})", made
    if not full and family in FIRST_BLOCKS:
        last = FIRST_BLOCKS[family]
        return f"{name} up to `{last}`", functools.partial(first_blocks, public, last)
    if name in NARROW:
        return f"{name}(alpha={NARROW[name]})", functools.partial(public, alpha=NARROW[name])
    return name, public


def side_of(family: str) -> int:
    """Returns the smallest height and width of pictures, in pixels, that the family takes."""
    return SMALLEST_PICTURES.get(family, 32)


def pictures(side: int, rows: int = ROWS, largest: float = 1.0) -> dict[str, Any]:
    """Returns pictures of `[rows, side, side, 3]` between 0 and `largest`, each of a class."""
    random = np.random.default_rng(8)
    x = random.uniform(0, largest, size=(rows, side, side, 3)).astype("float32")
    return {"x": x, "y": random.integers(0, CLASSES, size=(rows,)).astype("int32")}


def classify(**accumulation: Any) -> dict[str, Any]:
    """Returns the arguments of compile."""
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9, **accumulation)
    return {"optimizer": optimizer, "loss": "sparse_categorical_crossentropy"}


def subject_of(family: str, full: bool) -> Subject:
    """Returns the model of a family, and how it is trained."""
    name, constructor = constructor_of(family, full)
    side = side_of(family)
    arguments = {"weights": None, "classes": CLASSES, "input_shape": (side, side, 3)}
    scaled = "include_preprocessing" in inspect.signature(families()[family]).parameters
    largest = 255.0 if scaled or family == "efficientnet" else 1.0
    return Subject(
        name,
        functools.partial(constructor, **arguments),
        functools.partial(pictures, side, largest=largest),
        classify,
        BATCH_SIZE,
        EPOCHS,
    )


def measure(family: str, full: bool, results: dict[str, Any], save: Callable[[], None]) -> None:
    """Adds to the results of a family the ways that are not in them yet, and errors of rounding."""
    subject = subject_of(family, full)
    if results.get(family, {}).get("model") != subject.name:
        results[family] = {"model": subject.name, "side": side_of(family), "ways": {}}
    done = results[family]
    missing = [way for way in WAYS if way not in done["ways"]]
    if "parameters" not in done:
        model = subject.build()
        done.update(parameters=model.count_params(), layers=len(model.layers))
        done.update(keras=keras.__version__, jax=jax.__version__)

    def told(way: str, result: Any) -> None:
        done["ways"][way] = asdict(result)
        save()
        print(f"{subject.name:20} {way:12} {result}", flush=True)

    compare(subject, missing, told)
    for way in WAYS:
        result = done["ways"][way]
        if result.get("updates", 0.0) > LARGE and "errors" not in result:
            result["errors"] = asdict(reference(subject, way))
            save()
            print(f"{subject.name:20} {way:12} {result['errors']}", flush=True)
    jax.clear_caches()


def main() -> None:
    """Reads the arguments, and measures or prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("families", nargs="*", help="all, where none is named")
    parser.add_argument("--compiler", choices=["shipped", "quick"], default="shipped")
    parser.add_argument("--full", action="store_true", help="models of all their blocks")
    parser.add_argument("--table", action="store_true", help="print the table instead")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    if arguments.table:
        print(table(results), table_of_errors(results), sep="\n\n")
        return
    if arguments.compiler == "quick":
        compiler = QuickCompiler()
        compiler.install()
        compiler.is_on = True

    def save() -> None:
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")

    for family in arguments.families or families():
        measure(family, arguments.full, results, save)


def table(results: dict[str, Any]) -> str:
    """Returns the table of docs/models.md: `losses (updates)` of each way, or an error."""
    lines = [
        "| family | model | input | parameters | calls on each stage | one piece |"
        " accumulated | cut |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for family, result in sorted(results.items()):
        ways = [result["ways"].get(way) for way in WAYS]
        stages = " + ".join(map(str, (ways[-1] or {}).get("stages", []))) or "-"
        cells = [
            f"`{family}`",
            result["model"],
            f"{result['side']} x {result['side']} x 3",
            f"{result['parameters']:,}",
            stages,
            *map(_cell, ways),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not measured"
    if "error" in result:
        return f"`{result['error']}`"
    losses, updates = result["losses"], result["updates"]
    return "0" if losses == updates == 0 else f"{_figure(losses)} ({_figure(updates)})"


def _figure(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def table_of_errors(results: dict[str, Any]) -> str:
    """Returns the second table: how far from float64 both are, of ways whose updates differ."""
    lines = [
        "| family | way | difference of updates | error under a strategy | error in plain Keras |",
        "|---|---|--:|--:|--:|",
    ]
    for family, result in sorted(results.items()):
        for way, compared in result["ways"].items():
            if "errors" in compared:
                errors = compared["errors"]
                values = compared["updates"], errors["updates"], errors["updates_of_keras"]
                figures = " | ".join(map(_figure, values))
                lines.append(f"| `{family}` | {way} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
