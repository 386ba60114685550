"""What millrace-ipu takes of millrace: public names, and those of the seam. Nothing else."""

import ast
import importlib
import pathlib
import re

import millrace.extend

ROOT = pathlib.Path(__file__).parents[2]
CORE = ROOT / "src"
PACKAGE = ROOT / "millrace-ipu" / "src" / "millrace_ipu"
PUBLIC = ("callbacks", "distributed", "errors", "layers", "optimizers", "records")
# A name that is added here is one more that a change of millrace can break.
SEAM = [
    "Accumulation", "Assignment", "CompileRecord", "CompiledFunction", "Controller", "DataAdapter",
    "EntryLabels", "ExecutionSample", "ExecutionTrace", "Feed", "FeedSample", "LaunchOptions",
    "Launched", "LoopRecord", "MemoryReport", "MetricReduction", "Mode",
    "NestedPipelineStageAssignment", "Notes", "Offload", "OnHost", "Options", "Origin", "Patch",
    "Phrases", "PipelineStageAssignment", "Pipelining", "ProgramListener", "ProgramMemory",
    "ProgramOperations", "Recomputation", "RecomputationMode", "RecordSinks", "RecordedRun",
    "Reduction", "ReplicaLaunch", "Rules", "ScopedValue", "Setup", "VariableScope", "While",
    "WrappingOptimizer", "accumulator_dtype", "add_own_package", "are_prepared",
    "arguments_of",
    "as_array", "ask_for_virtual", "backends_are_initialized", "bound", "cache_statistics",
    "check_batch_serialization", "check_made_functions", "check_pipelined_step",
    "collecting", "compiles_only", "context_of", "controller_of",
    "cross_replica_mean", "cross_replica_sum", "current_scope",
    "devices_of_environment", "enclosing_loop", "factors", "find_calls", "from_json",
    "get_assignment", "get_data_adapter", "groups_needed", "has_own_call", "holds_anywhere",
    "host_memory", "identity", "in_replica", "is_array_adapter", "is_own_file", "is_own_module",
    "is_traced", "is_tracing", "largest", "launch", "launch_options", "launch_in_force", "leaves",
    "look_at", "make_chain", "move_values", "ordered", "patches_in", "plain", "process_count",
    "process_index", "put_in", "refuse_unknown", "register_listener",
    "replace", "replicas", "replication_index", "require_host", "scoped_stages", "share_seed",
    "show_phases", "stacked", "strategy_in_scope", "summary_lines", "take_out",
    "tap_again", "texts_of_all", "to_json", "trained_by", "truth", "unregister_listener",
    "use_cache", "use_phrases", "whole_number", "wrapped_chain",
]  # fmt: skip
# Each imports those after it only.
ORDER = ("cli", "porting", "ipu", "tensorflow", "_compat", "errors", "pytrees")


def imports(folder):
    """All imports of a folder: file and line, the package's own unit, module and name."""
    for path in sorted(folder.rglob("*.py")):
        unit = path.relative_to(folder).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield where, unit, node.module or "", alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield where, unit, alias.name, ""


def is_allowed(module, name):
    """Whether an import of millrace is one of a public name, or of the seam."""
    if module == "millrace":
        return name == "" or name in dir(millrace)
    if module == "millrace.extend":
        return name in SEAM
    if module.removeprefix("millrace.") in PUBLIC:
        return name in vars(importlib.import_module(module)) and not name.startswith("_")
    return False


def test_only_public_names_and_the_seam_are_imported():
    found = [each for each in imports(PACKAGE) if each[2].partition(".")[0] == "millrace"]
    assert [
        f"{w}: {module} {name}" for w, _, module, name in found if not is_allowed(module, name)
    ] == []
    assert len(found) > 100


def test_the_seam_has_these_names_and_each_is_used():
    names = [name for name in vars(millrace.extend) if not name.startswith("__")]
    assert sorted(names) == sorted(SEAM)
    used = {name for _, _, module, name in imports(PACKAGE) if module == "millrace.extend"}
    assert sorted(used) == sorted(SEAM)


def test_texts_name_nothing_else():
    """Code in strings, and docstrings."""
    names = {*dir(millrace), "extend", "phases"}  # a logger is called `millrace.phases`
    for path in sorted(PACKAGE.rglob("*.py")):
        assert set(re.findall(r"\bmillrace\.(\w+)", path.read_text())) <= names, path


def test_another_import_is_found():
    assert not is_allowed("millrace.run.fit.controller", "Controller")
    assert not is_allowed("millrace", "fit")
    assert not is_allowed("millrace.extend", "Infeed")
    assert is_allowed("millrace", "Strategy")
    assert is_allowed("millrace.errors", "OptionError")


def test_millrace_imports_neither_the_seam_nor_what_builds_on_it():
    modules = {module for _, _, module, name in imports(CORE)}
    modules |= {f"{module}.{name}" for _, _, module, name in imports(CORE)}
    assert [each for each in modules if each.startswith(("millrace.extend", "millrace_ipu"))] == []


def test_the_packages_import_downwards():
    upward = []
    for where, unit, module, name in imports(PACKAGE):
        root, _, rest = module.partition(".")
        other = rest.partition(".")[0] or name
        if root == "millrace_ipu" and unit != other and unit in ORDER:
            upward += [where] if ORDER.index(other) <= ORDER.index(unit) else []
    assert upward == []


def test_private_names_are_in_one_place():
    private = ("jax._src", "keras.src", "jaxlib")
    found = [
        w
        for w, unit, module, _ in imports(PACKAGE)
        if unit != "_compat" and module.startswith(private)
    ]
    assert found == []


def test_the_words_of_other_libraries_are_not_in_millrace():
    words = ("ipu", "poplar", "poprun", "popdist")
    found = []
    for path in sorted(CORE.rglob("*.py")):
        for number, line in enumerate(path.read_text().lower().splitlines(), 1):
            text = line.replace("manipul", "")
            found += [f"{path.relative_to(ROOT)}:{number}"] if any(w in text for w in words) else []
    assert found == []
