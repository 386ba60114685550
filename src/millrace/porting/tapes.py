"""Gradients by `tf.GradientTape`, which the stand-in converts in functions that are compiled.

@tf.function                            here, and in functions that it calls; in bodies of loops
def step(x, y):
with tf.GradientTape() as tape:
loss = loss_fn(y, model(x))
gradients = tape.gradient(loss, model.trainable_variables)
"""

import ast
from collections.abc import Callable, Iterator

Resolve = Callable[[ast.AST], str | None]

_NATIVE = (
    "loss, gradients = millrace.value_and_grad(loss_fn, variables) in a function of "
    "millrace.compile, or model.fit"
)
_COMPILE = (
    "tensorflow.function",
    "ipu.ipu_compiler.compile",
    "ipu.loops.repeat",
    "ipu.loops.while_loop",
)


def tape_findings(tree: ast.AST, resolve: Resolve) -> Iterator[tuple[int, str, str, bool]]:
    """Yields line, what, what instead and whether it stands in the way, of each tape.

    Args:
        tree: of a program.
        resolve: returns the dotted name that an expression stands for.
    """
    converted = _converted(tree, resolve)
    for function, call in _tapes(tree, resolve, ()):
        blocks = not converted.intersection(function)
        what = "tf.GradientTape outside of a tf.function" if blocks else "tf.GradientTape"
        yield call.lineno, what, _NATIVE, blocks


def _converted(tree: ast.AST, resolve: Resolve) -> set[str]:
    """Returns the names of functions that are compiled, and of those that these call."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names: set[str] = set()
    for node in functions:
        decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        if any(resolve(each) in _COMPILE for each in decorators):
            names.add(node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and resolve(node.func) in _COMPILE:
            names.update(map(_name, (*node.args[:2], *(each.value for each in node.keywords))))
    known = 0
    while known < len(names):
        known = len(names)
        for node in functions:
            if node.name in names:
                names |= {_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return names - {""}


def _name(node: ast.AST) -> str:
    """Returns the last part of `step` or `self.step`; empty for anything else."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _tapes(
    node: ast.AST, resolve: Resolve, inside: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.Call]]:
    """Yields the functions that each tape is in, by their names, and the call that makes it."""
    for child in ast.iter_child_nodes(node):
        around = (*inside, child.name) if isinstance(child, ast.FunctionDef) else inside
        if isinstance(child, ast.Call) and (resolve(child.func) or "").endswith(".GradientTape"):
            yield inside, child
        yield from _tapes(child, resolve, around)
