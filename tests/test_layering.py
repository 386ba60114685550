"""Every import points down a storey or stays in it, and none go in a circle."""

import ast
import importlib
import pathlib
import re

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "millrace"
# From the ground up. Folders are storeys; what stands beside them is named.
STOREYS = (
    {"errors"},
    {"base", "_compat", "_backend"},
    {"programs"},
    {"compilation"},
    {"run"},
    {"tools"},
    {"api"},
    {"callbacks", "distributed", "extend", "layers", "optimizers", "records"},  # the public modules
    {"__init__", "__main__"},
)
STOREY = {name: storey for storey, names in enumerate(STOREYS) for name in names}
WITHOUT_JAX = {
    "errors",
    "base.arguments",
    "base.collector",
    "base.error_notes",
    "base.interrupts",
    "base.options",
    "base.own_code",
    "base.records",
    "base.threads",
    "run.schedules",
    "tools.reports",
}


def modules():
    """Names of the modules of millrace, each with its file."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path):
    """Each name that a file imports from, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name


def imports():
    for module, path in modules().items():
        for line, name in imported(path):
            yield module, line, name


def storey_of(name):
    parts = name.split(".")
    return STOREY["__init__" if len(parts) == 1 else parts[1]]


def violations(imports):
    for module, line, name in imports:
        first, *rest = name.split(".")
        unit = ".".join(module.split(".")[1:3])
        if first == "millrace" and rest and rest[0] in STOREY:
            if storey_of(name) > storey_of(module):
                yield (
                    f"{module}:{line} imports {name}, which is a storey above. Move the shared "
                    "part down, or return it as a record."
                )
        elif first in ("jax", "keras") and unit in WITHOUT_JAX:
            yield f"{module}:{line} imports {first}. It is data only: take plain values instead."


def test_the_storeys_name_what_there_is():
    found = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - set(STOREY) - {"__pycache__", "py"} == set()


@pytest.mark.parametrize(
    "page", [SOURCE / "__init__.py", SOURCE.parent.parent / "ARCHITECTURE.md"], ids=lambda p: p.name
)
def test_the_maps_name_every_storey_and_what_is_in_it(page):
    text = page.read_text()
    units = {
        path.stem
        for storey in ("base", "programs", "compilation", "run", "tools", "api")
        for path in (SOURCE / storey).iterdir()
        if path.stem not in ("__init__", "__pycache__")
    }
    assert [unit for unit in sorted(units) if not re.search(rf"\b{unit}\b", text)] == []


def test_every_import_points_down():
    assert not list(violations(imports()))


def test_an_upward_import_is_found():
    down, up = "millrace.programs.steps.state", "millrace.api.strategy.strategy"
    assert not list(violations([("millrace.run.fit.feeds", 7, down)]))
    assert list(violations([("millrace.run.fit.feeds", 7, up)])) == [
        f"millrace.run.fit.feeds:7 imports {up}, which is a storey above. Move the shared part "
        "down, or return it as a record."
    ]
    assert list(violations([("millrace.base.records.run", 7, "jax.numpy")]))


def imports_between_modules():
    """Of each module of millrace, those of millrace that it imports: for types alone, too."""
    found = modules()
    between = {name: set() for name in found}
    for module, _, name in imports():
        between[module].add(name if name in found else name.rpartition(".")[0])
    return {name: (others & set(found)) - {name} for name, others in between.items()}


def circle(imports):
    """Modules of which each imports the next and the last one the first; [] if there are none."""
    done = set()

    def walk(name, way):
        if name in way:
            return way[way.index(name) :]
        if name in done:
            return []
        for other in sorted(imports[name]):
            if found := walk(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(imports) if (found := walk(name, []))), [])


def test_no_imports_go_in_a_circle():
    assert circle(imports_between_modules()) == []


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}) == ["b", "c"]


def test_private_names_stay_in_compat():
    private = [
        f"{module}:{line}: {name}"
        for module, line, name in imports()
        if not module.startswith("millrace._compat")
        and name.startswith(("jax._src", "keras.src", "jaxlib"))
    ]
    assert not private


def test_benchmarks_import_names_that_exist():
    """No test runs all benchmarks, and the type checker does not read them."""
    missing = []
    for path in sorted((SOURCE.parents[1] / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "millrace":
                module = importlib.import_module(node.module)
                missing += [
                    f"{path.name}:{node.lineno} {node.module}.{alias.name}"
                    for alias in node.names
                    if not hasattr(module, alias.name)
                ]
    assert not missing
