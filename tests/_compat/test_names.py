"""The table of private names and the source: what is used is listed, what is listed is used."""

import ast
import pathlib
import re

import pytest

from millrace._compat.names import NAMES

COMPAT = pathlib.Path(__file__).parents[2] / "src" / "millrace" / "_compat"
SOURCES = [path for path in sorted(COMPAT.glob("*.py")) if path.stem not in ("names", "__init__")]
PRIVATE_MODULES = ("keras.src", "jax._src", "jaxlib", "jax.extend", "jax.interpreters")
LISTED = {each.name for names in NAMES.values() for each in names}
MODULES = {
    place.partition(":")[0]
    for names in NAMES.values()
    for each in names
    for places in each.places.values()
    for place in places
}
# Attributes with a leading underscore of what is neither Keras's nor JAX's own.
OF_OTHERS = {
    "_batch_size": "of data sets of TensorFlow",
    "_input_dataset": "of data sets of TensorFlow",
    "_replace": "of named tuples",
    "_set": "of results of `multiprocessing.pool`",
    "_src": "part of a module's name",
}


def private_names(tree):
    """Yields the line and the name of each private thing that a file uses."""
    modules = {}
    own = set(names_given(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_MODULES):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in MODULES:  # its attributes are what is used
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                else:
                    yield node.lineno, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(PRIVATE_MODULES) and alias.name not in MODULES:
                    yield node.lineno, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of_module = isinstance(node.value, ast.Name) and node.value.id in modules
            if of_module or (is_private(node.attr) and node.attr not in own):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            arguments = [x.value for x in node.args if isinstance(x, ast.Constant)]
            if node.func.id in ("private", "owners"):
                yield from ((node.lineno, name) for name in arguments)
            elif node.func.id in ("getattr", "hasattr", "setattr", "wrap"):
                named = (x for x in arguments if isinstance(x, str) and is_private(x))
                yield from ((node.lineno, name) for name in named if name not in own)


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name not in OF_OTHERS


def names_given(tree):
    """Yields attributes that the file's own classes and functions have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("__"):
            if not is_private(node.name) or node.name not in LISTED:
                yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if is_self and node.attr not in LISTED:
                yield node.attr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_private_name_is_in_the_table(path):
    missing = [
        f"{path.name}:{line}: {name}"
        for line, name in private_names(ast.parse(path.read_text()))
        if name not in LISTED
    ]
    assert not missing


def test_a_private_name_that_is_not_in_the_table_is_found():
    source = """
from keras.src.models.functional import FunctionalLayer
from jax._src import distributed
import jaxlib.mlir

def look(model):
    distributed.global_stage
    owners("condition")
    return model._unheard_of, getattr(model, "_nor_of_this", None)
"""
    assert {name for _, name in private_names(ast.parse(source))} == {
        "FunctionalLayer",
        "jaxlib.mlir",
        "global_stage",
        "condition",
        "_unheard_of",
        "_nor_of_this",
    }


@pytest.mark.parametrize("library", NAMES)
def test_every_name_of_the_table_is_used(library):
    text = "\n".join(path.read_text() for path in SOURCES)
    words = set(re.findall(r"\w+", text))
    # `shardings_leaves` is put together from two parts.
    words |= {f"{name}_leaves" for name in ("in_shardings", "out_shardings")}
    assert {each.name for each in NAMES[library]} <= words


@pytest.mark.parametrize("library", NAMES)
def test_every_name_of_the_table_says_what_it_is_for(library):
    assert all(each.use and "0" in each.places for each in NAMES[library])
