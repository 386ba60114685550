"""The public names and signatures of `millrace_ipu.ipu`, as ipu_names.txt has them.

A change there is a change for every program that was written for the IPU. `KERAS_BACKEND=jax
python tests/millrace_ipu/ipu/test_ipu_names.py` writes the file; names that are not for users go
into INTERNAL.
"""

import ast
import enum
import importlib
import inspect
import pathlib
import re
import types

import keras
import pytest

import millrace_ipu
from millrace_ipu import ipu

NAMES = pathlib.Path(__file__).with_name("ipu_names.txt")
SOURCE = pathlib.Path(ipu.__file__).parent
MODULES = (
    "addons.keras.layers", "autoshard", "config", "control_flow_ops", "cross_replica_ops",
    "dataset_benchmark", "distributed", "distributed.popdist_strategy",
    "embedding_ops", "functional_ops", "gradient_accumulation", "internal_ops", "ipu_compiler",
    "ipu_infeed_queue", "ipu_outfeed_queue", "ipu_strategy", "keras", "keras.layers",
    "keras.optimizers", "loops", "math_ops", "nn_ops", "normalization_ops",
    "ops.cross_replica_ops", "ops.pipelining_ops", "ops.replication_ops", "optimizers",
    "pipelining_ops", "popdist", "popdist.tensorflow", "rand_ops", "replication_ops", "scopes",
    "tutorial", "utils",
)  # fmt: skip
# Names that modules of the package use of each other.
INTERNAL = {
    "Category", "Operation", "Option", "PipelineArguments", "Subcategory", "System",
    "added_up", "call_or_defer", "check_arguments", "check_length", "check_movable",
    "current_launch", "current_strategy", "current_system", "devices_in_scope", "extend",
    "functions_compiled_only", "is_extended", "is_within_a_program", "launching",
    "member_by_name", "method_of", "native_function", "native_options",
    "number_of_results", "processes_of", "put", "reduction_method", "refuse_continuous_updates",
    "reset_system", "revive_from_configs", "run_pipeline", "schedule_of", "settings_of",
    "uses_old_names", "warn_no_effect", "with_options", "without_effect",
}  # fmt: skip
NATIVE = {  # native objects under the names of the IPU's
    "MaybeOutfeed", "Outfeed", "OutfeedCallback", "OutfeedOptimizer", "PipelineStage",
    "RecomputationCheckpoint",
}  # fmt: skip
MOST = 400  # lines of a module


def text_of(value):
    """A signature without annotations; the members of an enumeration."""
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return ": " + ", ".join(f"{member.name}={member.value!r}" for member in value)
    if not callable(value):
        return ": property" if isinstance(value, property) else f" = {value!r}"
    signature = inspect.signature(value)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return re.sub(r"<([\w.]+): [^>]*>", r"\1", text)


def is_public(name, value):
    if name.startswith("_") or name in INTERNAL or isinstance(value, types.ModuleType):
        return False
    return name in NATIVE or str(getattr(value, "__module__", "")).startswith("millrace_ipu.ipu")


def lines_of_modules():
    for name in MODULES:
        module = importlib.import_module(f"millrace_ipu.ipu.{name}")
        for each, value in sorted(vars(module).items()):
            if not is_public(each, value):
                continue
            yield f"{name}.{each}{text_of(value)}"
            is_class = isinstance(value, type) and not issubclass(value, enum.Enum)
            if is_class and value.__module__ == module.__name__:
                for method, actual in sorted(vars(value).items()):
                    if not method.startswith("_") and callable(getattr(value, method)):
                        yield f"{name}.{each}.{method}{text_of(getattr(value, method))}"
                    elif not method.startswith("_") and isinstance(actual, property):
                        yield f"{name}.{each}.{method}{text_of(actual)}"


def lines_of_models():
    """The methods that models get in the scope of a strategy."""
    stock = set(dir(keras.Sequential([keras.layers.Dense(1)])))
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((1,))
        functional = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        models = {"Model": functional, "Sequential": keras.Sequential([keras.layers.Dense(1)])}
    for kind, model in models.items():
        for name in sorted(set(dir(model)) - stock):
            if name.startswith(("export_", "get_", "print_", "reset_", "set_")):
                yield f"{kind} in a scope: {name}{text_of(getattr(model, name))}"


def found_lines():
    return [*lines_of_modules(), *lines_of_models()]


def test_names_and_signatures_are_the_frozen_ones():
    frozen, actual = NAMES.read_text().splitlines(), found_lines()
    lost = [line for line in frozen if line not in actual]
    new = [line for line in actual if line not in frozen]
    assert (lost, new) == ([], []), f"{NAMES.name} has the first, millrace_ipu.ipu the second"


@pytest.mark.parametrize(
    "path",
    [
        "config.IPUConfig", "config.SelectionOrder", "config.SchedulingAlgorithm",
        "config.DeviceConnectionType", "utils", "ipu_strategy.IPUStrategy",
        "ipu_strategy.IPUStrategyV1", "keras.PipelineStage", "keras.extensions", "keras.layers",
        "loops.repeat", "ipu_compiler.compile", "scopes.ipu_scope",
        "ipu_infeed_queue.IPUInfeedQueue", "ipu_outfeed_queue.IPUOutfeedQueue",
        "optimizers.CrossReplicaOptimizer", "ops.pipelining_ops.pipeline",
        "pipelining_ops.pipeline", "ops.cross_replica_ops", "ops.replication_ops",
        "dataset_benchmark.dataset_benchmark", "gradient_accumulation",
    ],
)  # fmt: skip
def test_every_path_works_as_attributes_and_as_imports(path):
    actual = ipu
    for part in path.split("."):
        actual = getattr(actual, part)
    *parents, last = path.split(".")
    parent = ".".join(["millrace_ipu.ipu", *parents])
    names = {}
    exec(f"from {parent} import {last}", names)  # as a program does
    assert names[last] is actual


def test_the_two_names_of_the_strategy_are_one():
    assert ipu.ipu_strategy.IPUStrategy is ipu.ipu_strategy.IPUStrategyV1
    assert ipu.pipelining_ops.pipeline is ipu.ops.pipelining_ops.pipeline


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pipelining_ops", "ops.pipelining_ops"),
        ("cross_replica_ops", "ops.cross_replica_ops"),
        ("replication_ops", "ops.replication_ops"),
        ("addons.keras.layers", "keras.layers"),
        ("keras.optimizers.cross_replica_optimizer", "keras.optimizers"),
        ("keras.optimizers.gradient_accumulation_optimizer", "keras.optimizers"),
        ("keras.optimizers.map_gradient_optimizer", "keras.optimizers"),
    ],
)
def test_a_module_by_another_name_is_the_very_module(name, meant):
    expected = importlib.import_module(f"millrace_ipu.ipu.{meant}")
    assert importlib.import_module(f"millrace_ipu.ipu.{name}") is expected
    assert expected.__name__ == expected.__spec__.name == f"millrace_ipu.ipu.{meant}"
    package, _, last = f"millrace_ipu.ipu.{name}".rpartition(".")
    names = {}
    exec(f"import millrace_ipu.ipu.{name} as actual\nfrom {package} import {last}", names)
    assert names["actual"] is names[last] is expected


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=str(p.relative_to(SOURCE))) for p in sorted(SOURCE.rglob("*.py"))]
)
def test_modules_are_documented_and_not_too_long(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MOST
    assert ast.get_docstring(ast.parse(text))


def test_the_modules_list_what_programs_use():
    shown = {name for name in dir(millrace_ipu) if not name.startswith("_")}
    assert {"ipu"} <= shown <= {"errors", "ipu", "tensorflow"}
    assert {"config", "utils", "ipu_strategy", "keras", "pipelining_ops"} <= set(dir(ipu))
    assert all(hasattr(ipu, name) for name in dir(ipu))


if __name__ == "__main__":
    NAMES.write_text("\n".join(found_lines()) + "\n")
