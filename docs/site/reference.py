"""The pages of the reference: every public name of both packages, listed from the packages.

Autodoc writes the entries. A class of the records is described here instead: what it consists of
matters, and not how it is made. `sys.path` must have both packages.
"""

import ast
import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import pathlib
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any, get_args

import millrace
import millrace.extend
from millrace.api.strategy.attach import bound
from millrace.api.strategy.methods import METHODS
from millrace_ipu.errors import UnsupportedNameError

ROOT = pathlib.Path(__file__).parent.parent.parent
MODULES = ("callbacks", "layers", "optimizers", "distributed", "records", "errors")
# Sphinx copies the contents of all pages for each page's navigation; these are most of them.
_NO_CONTENTS = "      :no-contents-entry:\n"
# Names in modules of `millrace_ipu.tensorflow` that are not TensorFlow's.
INTERNAL = {"ADVICE", "KERAS_NAMES", "OPS", "V1_INITIALIZERS"}
INTERNAL |= {"real_data", "seed_or_generator", "strategy_of_scope"}
# The frozen names of `millrace_ipu.ipu`; a test compares them with the package.
IPU_NAMES = ROOT / "tests" / "millrace_ipu" / "ipu" / "ipu_names.txt"


def public_names(module: types.ModuleType) -> list[str]:
    """Returns the names of a public module that are millrace's own and no modules."""
    return [
        name
        for name in dir(module)
        if not name.startswith("_")
        and getattr(getattr(module, name), "__module__", "").startswith("millrace")
        and (module is millrace or is_own(module, name))
    ]


def public_objects() -> Iterator[tuple[str, object]]:
    """Yields all public names of millrace, by path, but for `millrace.extend`."""
    for module in (millrace, *(getattr(millrace, name) for name in MODULES)):
        for name in public_names(module):
            yield f"{module.__name__}.{name}", getattr(module, name)


def is_own(module: types.ModuleType, name: str) -> bool:
    """Whether a module defines a name, or imports it for its users: `import X as X`."""
    return name not in imported_for_itself(inspect.getsource(module))


@functools.cache
def imported_for_itself(source: str) -> set[str]:
    """Returns the names that a module imports, without those that it imports for its users."""
    lines = source.splitlines()
    return {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom) and "F401" not in lines[node.lineno - 1]
        for alias in node.names
        if alias.asname != alias.name
    }


def ipu_names() -> Iterator[tuple[str, str]]:
    """Yields the module and the name of each public function and class of `millrace_ipu.ipu`."""
    for path in re.findall(r"^[\w.]+(?=[(:]| =)", IPU_NAMES.read_text(), re.MULTILINE):
        module, _, name = f"millrace_ipu.ipu.{path}".rpartition(".")
        with contextlib.suppress(ModuleNotFoundError):  # a method, of a class
            importlib.import_module(module)
            yield module, name


def title(text: str, underline: str = "=") -> str:
    """Returns a heading."""
    return f"{text}\n{underline * len(text)}\n\n"


def entry(path: str, value: object) -> str:
    """Returns the directive of autodoc for a name, by its public path."""
    if not isinstance(value, type):
        return f".. {'autofunction' if callable(value) else 'autodata'}:: {path}\n\n"
    if issubclass(value, BaseException):
        return f".. autoexception:: {path}\n\n"
    # Members of enumerations have no docstrings, nor have some that the IPU's own classes have.
    without = "   :undoc-members:\n" if path.startswith("millrace_ipu.") else ""
    if getattr(vars(value).get("__init__"), "__doc__", None):
        without += "   :class-doc-from: both\n"  # where the arguments are described
    return f".. autoclass:: {path}\n   :members:\n{without}\n"


def module_page(module: types.ModuleType) -> str:
    """Returns the page of a public module: its docstring, and each of its names."""
    text = title(module.__name__)
    if module is not millrace:  # whose docstring is for those who read the source
        text += f".. automodule:: {module.__name__}\n   :no-members:\n\n"

    def place(name: str) -> tuple[bool, bool, str]:
        return name != "Strategy", not isinstance(getattr(module, name), type), name

    for name in sorted(public_names(module), key=place):
        text += entry(f"{module.__name__}.{name}", getattr(module, name))
    return text


def model_page() -> str:
    """Returns the page of the methods that a strategy adds to a model."""
    text = title("Methods of a model") + (
        "A model that is built in the scope of a strategy, or attached to one, has these methods "
        "besides Keras's own.\n\n"
    )
    return text + "".join(entry(f"model.{method.__name__}", method) for method in METHODS)


def model_module() -> types.ModuleType:
    """Returns a module of these methods, without their first argument, for autodoc to import."""
    module = types.ModuleType("model")
    for method in METHODS:
        setattr(module, method.__name__, bound(method, None))  # type: ignore[arg-type]
    return module


def result_types() -> Iterator[type]:
    """Yields the classes of the records that public functions return, and what these consist of."""
    found: dict[type, None] = {}

    def follow(kind: Any) -> None:
        for part in get_args(kind):
            follow(part)
        if not isinstance(kind, type) or not kind.__module__.startswith("millrace."):
            return
        if kind in found:
            return
        found[kind] = None
        if dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                follow(field.type)
        for member in vars(kind).values():
            follow_result(member.fget if isinstance(member, property) else member)

    def follow_result(function: Any) -> None:
        if callable(function):
            follow(getattr(inspect.unwrap(function), "__annotations__", {}).get("return"))

    for _, value in public_objects():
        follow(value) if isinstance(value, type) else follow_result(value)
    for kind in found:
        if kind.__module__.startswith("millrace.base.records") and dataclasses.is_dataclass(kind):
            yield kind


def record_entry(kind: type) -> str:
    """Returns the description of a record: fields with the comments on them, properties."""
    text = f".. py:class:: {kind.__name__}\n   :canonical: {kind.__module__}.{kind.__name__}\n\n"
    text += "".join(f"   {line}\n" for line in as_rst(inspect.getdoc(kind).splitlines())) + "\n"
    source = inspect.getsource(kind)
    for field in dataclasses.fields(kind):
        if not field.name.startswith("_"):
            is_text = isinstance(field.type, str)
            kind_text = field.type if is_text else inspect.formatannotation(field.type)
            short = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", kind_text)
            comment = re.search(rf"^    {field.name}: .*?  # (.+)$", source, re.MULTILINE)
            text += f"   .. py:attribute:: {field.name}\n      :type: {short}\n{_NO_CONTENTS}\n"
            text += f"      {sentence(comment[1])}\n\n" if comment else ""
    for name, value in vars(kind).items():
        if isinstance(value, property) and not name.startswith("_"):
            text += f"   .. py:property:: {name}\n{_NO_CONTENTS}\n"
            lines = (inspect.getdoc(value) or "").splitlines()
            text += "".join(f"      {line}\n" for line in as_rst(lines)) + "\n"
    return text


def ipu_page() -> str:
    """Returns the page of `millrace_ipu.ipu`: each module, each function and class once."""
    modules: dict[str, list[str]] = {}
    for module, name in ipu_names():
        modules.setdefault(module, []).append(name)
    shown = {id(value): path for path, value in public_objects()}
    text = title("millrace_ipu.ipu") + (
        "The modules of ``tensorflow.python.ipu``. :doc:`/porting` says what differs.\n\n"
    )
    described: dict[str, str] = {}
    for module in sorted(modules, key=lambda name: (proper_name(name) != name, name)):
        text += title(module.removeprefix("millrace_ipu."), "-")
        first = described.setdefault(proper_name(module), module)
        if first != module:
            text += f"Another name of ``{first}``, with {', '.join(modules[module])}.\n\n"
            continue
        actual = importlib.import_module(module)
        also = ""
        for name in sorted(modules[module], key=lambda n: (own_name(getattr(actual, n)) != n, n)):
            value, path = getattr(actual, name), f"{module}.{name}"
            if id(value) in shown:
                also += f"``{name}`` is :py:obj:`{shown[id(value)]}`.\n\n"
            else:
                text += entry(path, value)
                shown[id(value)] = path
        text += also
    name = "millrace_ipu.errors.UnsupportedNameError"
    return text + title("errors", "-") + entry(name, UnsupportedNameError)


def proper_name(module: str) -> str:
    """Returns the own name of a module, which may have others."""
    return importlib.import_module(module).__name__


def own_name(value: object) -> str:
    """Returns the name that a class or function was defined with."""
    return getattr(value, "__name__", "")


def extend_page() -> str:
    """Returns the page of `millrace.extend`: its groups of names, with their first sentences."""
    text = title("millrace.extend") + ".. automodule:: millrace.extend\n   :no-members:\n\n"
    for comment, name in re.findall(
        r"^# (?!ruff)(.+)$| as (\w+)(?=,?$)", inspect.getsource(millrace.extend), re.MULTILINE
    ):
        value = getattr(millrace.extend, name, None)
        if comment:
            text += title(comment.rstrip("."), "-")
        else:
            first = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
            text += f"``{name}``\n   {sentence(first)}\n\n"
    return text


def tensorflow_names() -> Iterator[tuple[str, list[str]]]:
    """Yields the modules of `millrace_ipu.tensorflow`, each with its names of TensorFlow."""
    for path in ("", ".math", ".nn", ".linalg", ".image", ".random", ".data", ".summary",
                 ".distribute", ".compat.v1"):  # fmt: skip
        module = importlib.import_module(f"millrace_ipu.tensorflow{path}")
        names = {name for name in dir(module) if name.isidentifier() and is_own(module, name)}
        yield (
            path,
            sorted(
                name
                for name in names - INTERNAL
                if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
            ),
        )


def tensorflow_page() -> str:
    """Returns the page of the names of TensorFlow, which mean there what they mean here."""
    text = title("millrace_ipu.tensorflow") + (
        "The names of TensorFlow that programs for the IPU use. They are documented by "
        "TensorFlow; :doc:`/porting` says what differs, and what is tested.\n\n"
    )
    for path, names in tensorflow_names():
        text += title(f"tf{path}", "-")
        text += ", ".join(f"``{name}``" for name in names) + "\n\n"
    return text


def as_rst(lines: list[str]) -> list[str]:
    """Returns a docstring, in which an indented block is code, in the notation of Sphinx."""
    parts: list[str] = []
    section = is_code = False
    for part in "\n".join(lines).split("\n\n"):
        if part.startswith(" ") and not section:
            if not is_code:
                parts.append(f".. code-block:: {language(part)}")
            is_code = True
        else:
            is_code = False
            section = bool(re.match(r"\w+:\n", part)) or (section and part.startswith(" "))
            part = re.sub(r"`([^`]+)`(\w?)", lambda m: f"`{m[1]}`" + (m[2] and f"\\ {m[2]}"), part)
        parts.append(part)
    return "\n\n".join(parts).splitlines()


def sentence(text: str) -> str:
    """Returns a text of one line in the notation of Sphinx."""
    return " ".join(as_rst([text]))


def language(code: str) -> str:
    """Returns the name of a block's language: Python, or text where that cannot be parsed."""
    with contextlib.suppress(SyntaxError):
        ast.parse(textwrap.dedent(code))
        return "python"
    return "text"


def pages() -> dict[str, str]:
    """Returns the pages of the reference, by name."""
    texts = {"api/millrace.rst": module_page(millrace), "api/model.rst": model_page()}
    for name in MODULES:
        texts[f"api/{name}.rst"] = module_page(getattr(millrace, name))
    texts["api/records.rst"] += "".join(record_entry(kind) for kind in result_types())
    texts["api/extend.rst"] = extend_page()
    texts["api/ipu.rst"] = ipu_page()
    texts["api/tensorflow.rst"] = tensorflow_page()
    return texts


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""

    def mend(app: Any, what: str, name: str, value: object, options: Any, lines: list[str]) -> None:
        lines[:] = as_rst([line for line in lines if "controller: of the model" not in line])

    def sign(app: Any, what: str, name: str, value: Any, options: Any, text: str, result: str):
        if isinstance(value, enum.EnumMeta):
            return "", result
        if what == "class" and text == "(*args, **kwargs)":  # of the `__new__` of Keras's layers
            return stringify_signature(inspect.signature(value), unqualified_typehints=True), result
        # Sphinx reads a signature as Python, and shows as it is what it cannot read.
        return (text or "").replace("<default>", "...") or None, result

    from sphinx.util.inspect import stringify_signature  # not needed to list the names

    sys.modules["model"] = model_module()
    app.connect("autodoc-process-docstring", mend, priority=100)  # before Napoleon
    app.connect("autodoc-process-signature", sign)
    return {"parallel_read_safe": True}
