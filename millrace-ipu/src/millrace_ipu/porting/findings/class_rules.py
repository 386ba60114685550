"""Findings for the classes that a program derives from those of Keras.

class Plain(Optimizer): def _resource_apply_dense(...)    Keras 3 calls update_step
class Hits(Metric): def result(self): return self.hits    a variable is no result of a program
class Noise(Layer): tf.random.normal(shape)               a trace needs a seed generator
"""

import ast
from collections.abc import Iterator, Mapping, Sequence

from millrace_ipu.porting.findings.finding import Finding, replaced
from millrace_ipu.porting.findings.near_names import shown
from millrace_ipu.porting.object_names import ASSIGNMENTS, COUNTED, OF_OPTIMIZERS, OVERRIDES

_WITH_DTYPES = ("keras.layers.", "keras.losses.", "keras.metrics.")
_RANDOM = ("normal", "uniform", "truncated_normal", "dropout", "categorical", "randint", "gamma")
_SEED = "{name}(..., seed=self.seed), with self.seed = keras.random.SeedGenerator(0) in __init__"


def of_class(node: ast.ClassDef, bases: Sequence[str]) -> Iterator[Finding]:
    """Yields the findings of a class, without those of the code in its methods.

    Args:
        node: the class.
        bases: the canonical names of the classes that it derives from; empty for others.
    """
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    is_optimizer = any(base.startswith("keras.optimizers.") for base in bases)
    for name, method in methods.items():
        # Some names tell by themselves: the base of a class may be an argument of a function.
        if (is_optimizer and name in OVERRIDES) or name in OF_OPTIMIZERS:
            what = f"{name}() of an optimizer, which Keras 3 does not call"
            yield Finding(method.lineno, what, OVERRIDES[name])
    if any(base.startswith("keras.optimizers.schedules.") for base in bases):
        yield from _of_schedule(methods["__call__"]) if "__call__" in methods else ()
    if any(base.startswith(_WITH_DTYPES) for base in bases) or _is_loss(methods):
        yield from _of_dtype(node)
    if any(base.startswith("keras.metrics.") for base in bases) and "result" in methods:
        yield from _of_result(methods["result"], _weights(node))


def _of_schedule(method: ast.FunctionDef) -> Iterator[Finding]:
    for each in ast.walk(method):
        function = each.func if isinstance(each, ast.Call) else None
        name = function.attr if isinstance(function, ast.Attribute) else ""
        if function is not None and name in ASSIGNMENTS:
            what = f"{name}() in a schedule of learning rates, whose variables no program keeps"
            yield Finding(function.lineno, what, COUNTED)


def _is_loss(methods: Mapping[str, ast.FunctionDef]) -> bool:
    """Whether a class is a loss by its `call(self, y_true, y_pred)`, whatever its base is."""
    return "call" in methods and any(a.arg == "y_true" for a in methods["call"].args.args)


def _of_dtype(node: ast.ClassDef) -> Iterator[Finding]:
    for each in ast.walk(node):
        target = each.targets[0] if isinstance(each, ast.Assign) else None
        if isinstance(target, ast.Attribute) and ast.unparse(target) == "self.dtype":
            what = f"self.dtype = ... in {node.name}, whose dtype Keras 3 does not let it set"
            yield Finding(target.lineno, what, "another name, or super().__init__(dtype=dtype)")


def of_random(node: ast.Call, name: str, layer: str) -> Iterator[Finding]:
    """Yields the finding of a random operation in a layer that has no seed.

    Args:
        node: the call.
        name: the canonical name of the function.
        layer: the name of the layer class around it.
    """
    module, _, last = name.rpartition(".")
    if module not in ("tensorflow.random", "keras.random") or last not in _RANDOM:
        return
    if all(keyword.arg not in ("seed", None) for keyword in node.keywords):
        instead = _SEED.format(name=shown(name))
        what = f"{shown(name)} without a seed in {layer}"
        # TensorFlow's draw from a generator of the layer: tensorflow/random.py.
        yield Finding(node.lineno, what, instead, blocks=module == "keras.random")


def _weights(node: ast.ClassDef) -> set[str]:
    """Returns the attributes that a class sets to new variables."""
    return {
        target.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)
        for target in each.targets
        if isinstance(target, ast.Attribute)
        and getattr(each.value.func, "attr", "") in ("add_weight", "add_variable", "Variable")
    }


def _of_result(method: ast.FunctionDef, weights: set[str]) -> Iterator[Finding]:
    for each in ast.walk(method):
        value = each.value if isinstance(each, ast.Return) else None
        if isinstance(value, ast.Attribute) and value.attr in weights:
            text = f"{ast.unparse(value)}.value"
            what = f"return {ast.unparse(value)}, a variable, as the result of a metric"
            yield Finding(value.lineno, what, f"return {text}", edits=(replaced(value, text),))
