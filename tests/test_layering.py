"""Every import points down. The table is the one drawn in ARCHITECTURE.md."""

import ast
import pathlib
import re

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "millrace"
LEVELS = [
    {"_compat", "_backend"},
    {"options", "records", "arguments", "interrupts"},
    {"graph", "schedules", "devices", "processes"},
    {"plan", "cache"},
    {"programs", "keys"},
    {"compiling", "feeds"},
    {"runtime"},
    {"strategy", "distributed", "launch", "layers", "optimizers", "cache_table"},
    {"replay", "compile_log_table", "cli_types"},
    {"callbacks", "benchmark", "loops", "cli_compilation"},
    {"tensorflow", "pipelines"},
    {"ipu"},
    {"porting"},
    {"cli_porting"},
    {"cli"},
    {"__init__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
LEVEL["errors"] = -1  # below everything
WITHOUT_JAX = {"errors", "arguments", "interrupts", "options", "records", "schedules"}


def units_and_imports():
    for path in sorted(SOURCE.rglob("*.py")):
        unit = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "millrace":
                    names = [f"millrace.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                yield path, node.lineno, unit, name


def violations(imports):
    for path, line, unit, name in imports:
        where = f"{path.relative_to(SOURCE.parent)}:{line}"
        first, *rest = name.split(".")
        if first == "millrace" and rest:
            other = rest[0]
            if other not in LEVEL or unit not in LEVEL:
                yield f"{where}: {unit} or {other} has no level. Add it to LEVELS."
            elif other != unit and LEVEL[other] >= LEVEL[unit]:
                yield (
                    f"{where}: {unit} (level {LEVEL[unit]}) imports {other} (level "
                    f"{LEVEL[other]}). Move the shared part down, or return it as a record."
                )
        elif first in ("jax", "keras") and unit in WITHOUT_JAX:
            yield f"{where}: {unit} imports {first}. It is data only: take plain values instead."


def units():
    names = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    return names - {"__init__"}


def test_the_levels_name_what_there_is():
    assert set(LEVEL) - {"__init__"} == units()


@pytest.mark.parametrize(
    "page", [SOURCE / "__init__.py", SOURCE.parent.parent / "ARCHITECTURE.md"], ids=lambda p: p.name
)
def test_the_maps_name_every_package_and_module(page):
    text = page.read_text()
    assert [unit for unit in sorted(units()) if not re.search(rf"\b{unit}(/|\.py)", text)] == []


def test_every_import_points_down():
    assert not list(violations(units_and_imports()))


def test_an_upward_import_is_found():
    path = SOURCE / "feeds" / "infeed.py"
    found = list(violations([(path, 7, "feeds", "millrace.compiled_loop.runner")]))
    assert found == [
        "millrace/feeds/infeed.py:7: feeds (level 5) imports runtime (level 6). "
        "Move the shared part down, or return it as a record."
    ]
    assert list(violations([(path, 7, "feeds", "millrace.compiling.log")]))  # side by side
    assert list(violations([(path, 7, "records", "jax.numpy")]))


def test_private_names_stay_in_compat():
    private = [
        f"{path}:{line}: {name}"
        for path, line, unit, name in units_and_imports()
        if unit != "_compat" and name.startswith(("jax._src", "keras.src", "jaxlib"))
    ]
    assert not private
