"""Every import points down, and no imports go in a circle. ARCHITECTURE.md draws the table."""

import ast
import pathlib
import re

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "millrace"
LEVELS = [
    {"_compat", "_backend"},
    {"options", "records", "arguments", "interrupts"},
    {"devices", "schedules", "processes", "cache", "checkpoints"},
    {"plan", "reports", "timing"},
    {"explain", "feeds", "taps"},
    {"recomputation"},
    {"steps"},
    {"compiling", "replicas"},
    {"export"},
    {"compiled_loop"},
    {"pipelines"},
    {"memory"},
    {"fit"},
    {"precompile", "operations"},
    {"memory_report", "resuming"},
    {"recording", "planning"},
    {"strategy", "distributed", "layers", "benchmark"},
    {"replay", "loops"},
    {"callbacks", "optimizers", "loop_checkpoints"},
    {"function_pipelines"},
    {"cli"},
    {"extend", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
LEVEL |= dict.fromkeys(("errors", "threads", "pytrees", "collector", "own_code"), -1)  # at the foot
WITHOUT_JAX = {"errors", "threads", "arguments", "interrupts", "options", "records", "schedules"}
WITHOUT_JAX |= {"reports", "collector", "own_code"}


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
    found = list(violations([(path, 7, "feeds", "millrace.steps.state")]))
    assert found == [
        "millrace/feeds/infeed.py:7: feeds (level 4) imports steps (level 6). "
        "Move the shared part down, or return it as a record."
    ]
    assert list(violations([(path, 7, "feeds", "millrace.explain.key")]))  # side by side
    assert list(violations([(path, 7, "records", "jax.numpy")]))


def imports_between_modules():
    """Of each module of millrace, those of millrace that it imports: for types alone, too."""
    modules = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                of = [f"{node.module}.{alias.name}" for alias in node.names]
                found[name] |= {each if each in modules else node.module for each in of}
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
    return {name: (imports & set(modules)) - {name} for name, imports in found.items()}


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
        f"{path}:{line}: {name}"
        for path, line, unit, name in units_and_imports()
        if unit != "_compat" and name.startswith(("jax._src", "keras.src", "jaxlib"))
    ]
    assert not private
