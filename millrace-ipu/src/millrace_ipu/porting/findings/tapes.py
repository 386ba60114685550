"""Gradient tapes: `tf.function` converts those in functions that it compiles, and no others.

@tf.function                        also in functions that it calls, and in bodies of loops
def step(x, y):
with tf.GradientTape() as tape:
loss = loss_fn(y, model(x))
gradients = tape.gradient(loss, model.trainable_variables)
"""

import ast
from collections.abc import Callable, Iterator, Sequence

Resolve = Callable[[ast.AST], str | None]

# The text of the report for a tape.
TAPE = (
    "loss, gradients = millrace.value_and_grad(loss_fn, variables) in a function of "
    "millrace.compile, or model.fit"
)
_COMPILE = (
    "tensorflow.function",
    "ipu.ipu_compiler.compile",
    "ipu.loops.repeat",
    "ipu.loops.while_loop",
)


def tapes(tree: ast.AST, resolve: Resolve, compiled: set[str]) -> Iterator[tuple[ast.Call, bool]]:
    """Yields the calls that create tapes, and whether each is outside of compiled functions.

    Args:
        tree: syntax tree of a file.
        resolve: returns the dotted name that an expression stands for.
        compiled: the names of the program's compiled functions.
    """
    for functions, call in _tapes(tree, resolve, ()):
        yield call, not compiled.intersection(functions)


def compiled_functions(files: Sequence[tuple[ast.AST, Resolve]]) -> set[str]:
    """Returns the names of compiled functions, and of the functions that they call.

    Args:
        files: the syntax tree of each file of a program, with the `resolve` of its names.
    """
    functions = [n for tree, _ in files for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    names: set[str] = set()
    for tree, resolve in files:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
                if any(resolve(each) in _COMPILE for each in decorators):
                    names.add(node.name)
            if isinstance(node, ast.Call) and resolve(node.func) in _COMPILE:
                names |= set(map(_name, (*node.args[:2], *(k.value for k in node.keywords))))
    count = 0
    while count < len(names):
        count = len(names)
        for node in functions:
            if node.name in names:
                names |= {_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return names - {""}


def _name(node: ast.AST) -> str:
    """Returns `step` for `step` and `self.step`; an empty string for another expression."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _tapes(
    node: ast.AST, resolve: Resolve, inside: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.Call]]:
    """Yields the names of the functions around each tape, and the call that creates it."""
    for child in ast.iter_child_nodes(node):
        around = (*inside, child.name) if isinstance(child, ast.FunctionDef) else inside
        if isinstance(child, ast.Call) and (resolve(child.func) or "").endswith(".GradientTape"):
            yield inside, child
        yield from _tapes(child, resolve, around)
