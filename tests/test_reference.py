"""Every public name has an entry in the reference, which docs/site/reference.py lists."""

import importlib
import importlib.util
import inspect
import pathlib
import re

import keras
import pytest

import millrace
import millrace.extend
from test_public_api import ERRORS, METHODS, public_objects

ROOT = pathlib.Path(__file__).parent.parent
IPU_NAMES = ROOT / "tests" / "millrace_ipu" / "ipu" / "ipu_names.txt"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/site/reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference):
    return reference.pages()


def entries(*texts):
    return set(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", "\n".join(texts), re.MULTILINE))


def test_every_public_name_has_an_entry(pages):
    names = {f"millrace.{name}" for name, _ in public_objects()}
    names |= {f"millrace.errors.{name}" for name in ERRORS}
    names |= {f"model.{name}" for name in METHODS}
    names |= {"millrace.distributed.initialize", "millrace.records.load"}
    assert sorted(names - entries(*pages.values())) == []


def test_arguments_that_a_constructor_describes_are_shown(pages):
    text = pages["api/callbacks.rst"]
    both = re.findall(r"autoclass:: millrace\.callbacks\.(\w+)\n.*\n   :class-doc-from: both", text)
    shown = ["BatchOutputs", "Checkpoint", "Report", "TensorStatistics"]
    assert both == shown  # the others, in the class's own


def test_every_public_module_has_a_page(reference, pages):
    names = [name for name in dir(millrace) if not name.startswith("_")]
    modules = {name for name in names if inspect.ismodule(getattr(millrace, name))}
    assert set(reference.MODULES) == modules
    assert {f"api/{name}.rst" for name in modules | {"millrace", "extend"}} <= set(pages)


def test_the_methods_of_a_model_are_shown_without_their_controller(reference, strategy):
    model = strategy.attach(keras.Sequential([keras.layers.Dense(1)]))
    for name in METHODS:
        shown = inspect.signature(getattr(reference.model_module(), name))
        assert shown == inspect.signature(getattr(model, name)), name


def test_the_names_for_packages_on_top_are_listed(pages):
    names = [name for name in vars(millrace.extend) if not name.startswith("_")]
    assert [name for name in names if f"``{name}``" not in pages["api/extend.rst"]] == []


def test_the_names_of_the_ipu_are_listed(pages):
    page = pages["api/ipu.rst"]
    listed = {name.rpartition(".")[2] for name in entries(page)}
    listed |= set(re.findall(r"``(\w+)`` is", page))
    paths = re.findall(r"^([\w.]+?)(?=[(:]| =)", IPU_NAMES.read_text(), re.MULTILINE)
    classes = [path for path in paths if path.rpartition(".")[0] not in paths]
    assert sorted({path.rpartition(".")[2] for path in classes} - listed) == []


def test_all_names_of_the_ipu_have_a_docstring(reference):
    values = [(m, n, getattr(importlib.import_module(m), n)) for m, n in reference.ipu_names()]
    assert [f"{module}.{name}" for module, name, value in values if not inspect.getdoc(value)] == []


def test_a_block_in_a_docstring_is_code(reference):
    lines = "Runs it.\n\n    x = [1]\n\n    y = 2\n\nArgs:\n    x: `int`s\n\n    y: a".splitlines()
    shown = "\n".join(reference.as_rst(lines))
    assert ".. code-block:: python\n\n    x = [1]\n\n    y = 2\n\nArgs:\n    x: `int`\\ s" in shown
    assert shown.count("code-block") == 1
    assert reference.language("stage 0 |F0 B0") == "text"
