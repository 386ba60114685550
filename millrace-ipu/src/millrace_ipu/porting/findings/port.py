"""The parts of a program that will not run on millrace, line by line.

source -> syntax tree -> names, calls and imports under their full names
       -> Finding(line, what, instead, blocks, edits)

What `millrace run` mends runs as it is, and so does what nothing calls (reached.py).
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from millrace_ipu.porting.findings.call_rules import ObjectRules
from millrace_ipu.porting.findings.class_rules import of_class, of_random
from millrace_ipu.porting.findings.finding import Finding
from millrace_ipu.porting.findings.habit_rules import HabitRules
from millrace_ipu.porting.findings.import_rules import ModuleRules
from millrace_ipu.porting.findings.imports import ImportRules
from millrace_ipu.porting.findings.kinds import Kinds
from millrace_ipu.porting.findings.made_layers import LAYER, made_layers, traced_functions
from millrace_ipu.porting.findings.name_rules import NameRules, name_now
from millrace_ipu.porting.findings.own_modules import OwnModule, PortedProgram
from millrace_ipu.porting.findings.reached import switched_off, unreached
from millrace_ipu.porting.findings.tapes import TAPE, compiled_functions, tapes
from millrace_ipu.porting.names import ImportedNames
from millrace_ipu.porting.replacements import option

_GUARDS = ("ImportError", "ModuleNotFoundError", "Exception", "AttributeError", "BaseException")


@dataclass(frozen=True, slots=True)
class FileFindings:
    """What was found in a file of a program."""

    module: OwnModule
    findings: tuple[Finding, ...]
    imports: ImportRules  # with what the edits of the findings need

    @property
    def shown(self) -> tuple[Finding, ...]:
        """Those that are reported: all but names that are spelled anew in a rewritten program."""
        return tuple(finding for finding in self.findings if finding.what)


def port(source: str) -> tuple[Finding, ...]:
    """Returns the parts of a program that will not run, in the order of its lines.

    Args:
        source: source text of a Python program.

    Raises:
        SyntaxError: if the text is not Python.
    """
    return port_program(PortedProgram([], follows=False, text=source), 1)[0].shown


def port_program(program: PortedProgram, number: int) -> list[FileFindings]:
    """Returns the findings of all files of a program.

    Args:
        program: its files.
        number: how many of them, from the first one on, are scripts or were named beside them.
    """
    trees = [module.tree for module in program.modules]
    is_served = any(map(uses_tensorflow, trees))
    dead = unreached(trees[:number], trees)
    files = [(m.tree, program.names(m).resolve) for m in program.modules]
    functions = _DeviceFunctions(compiled_functions(files), traced_functions(files))
    return [_of_module(program, each, is_served, dead, functions) for each in program.modules]


class _DeviceFunctions(NamedTuple):
    """The functions of a program that run on devices, by their names."""

    compiled: set[str]  # whose tapes are converted
    traced: set[str]  # which make no layers


def uses_tensorflow(tree: ast.Module) -> bool:
    """Whether a program imports TensorFlow, or an IPU package other than millrace's."""
    modules = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    roots = ("tensorflow", "ipu_tensorflow_addons", "tf_keras")
    return any(name.partition(".")[0] in roots or name == "keras.ipu" for name in modules)


def _of_module(
    program: PortedProgram,
    module: OwnModule,
    is_served: bool,
    dead: set[int],
    functions: _DeviceFunctions,
) -> FileFindings:
    names = program.names(module)
    visitor = _FindingVisitor(program, module, names, is_served, dead)
    visitor.visit(module.tree)
    findings = [*visitor.findings]
    for call, blocks in tapes(module.tree, names.resolve, functions.compiled):
        what = "tf.GradientTape outside of a tf.function" if blocks else "tf.GradientTape"
        is_reached = call.lineno not in visitor.idle_lines
        findings.append(Finding(call.lineno, what, TAPE, blocks and is_reached))
    for call, layer in made_layers(module.tree, names.resolve, functions.traced):
        what = f"keras.layers.{layer} made anew in a function that is traced"
        findings.append(Finding(call.lineno, what, LAYER, call.lineno not in visitor.idle_lines))
    unique = {(each.line, each.what, "" if each.what else each.edits): each for each in findings}
    ordered = sorted(unique.values(), key=lambda finding: (finding.line, finding.what))
    return FileFindings(module, tuple(ordered), visitor.imports)


class _FindingVisitor(ast.NodeVisitor):
    """Collects the findings of a file."""

    def __init__(
        self,
        program: PortedProgram,
        module: OwnModule,
        names: ImportedNames,
        is_served: bool,
        dead: set[int],
    ) -> None:
        tree, source = module.tree, module.source
        self.findings: list[Finding] = []
        self.idle_lines: set[int] = set()  # of code that does not run
        self._names, self._dead = names, dead
        has_sessions = "compat.v1" in source.text or "Session(" in source.text
        kinds = Kinds(tree, names, has_arrays=not has_sessions)
        self.imports = ImportRules(
            tree,
            source,
            lambda name, level: program.is_own(module, name, level),
            lambda name: program.served_by(module, name),
            name_now,
        )
        habits = HabitRules(source, is_served, kinds.value)
        self._name_rules = NameRules(names, self.imports, is_served)
        self._call_rules = ObjectRules(names, kinds, habits, program.defined(), is_served)
        self._module_rules = ModuleRules(program, module, self._name_rules)
        self._off = switched_off(tree)
        self._configs: set[str] = set()  # variables that are an IPUConfig
        self._layer = ""  # the name of the layer class around the current node
        self._guard = ""  # why the code at the current node does not stop the program

    def visit(self, node: ast.AST) -> None:
        """Visits a node, which may be one that does not run."""
        before = self._guard
        if id(node) in self._dead:
            self._guard = "nothing calls it"
        elif id(node) in self._off:
            self._guard = f"only with {self._off[id(node)]}"
        if self._guard and isinstance(node, ast.stmt):
            self.idle_lines |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        super().visit(node)
        self._guard = before

    def visit_Try(self, node: ast.Try) -> None:
        """Code whose errors the program handles itself."""
        handled = {ast.unparse(h.type) if h.type else "Exception" for h in node.handlers}
        is_guarded = any(name in text for text in handled for name in _GUARDS)
        before = self._guard
        self._guard = "its error is handled" if is_guarded else before
        for child in node.body:
            self.visit(child)
        self._guard = before if not is_guarded else "only after an error"
        for child in node.handlers:
            self.visit(child)
        self._guard = before
        for child in (*node.orelse, *node.finalbody):
            self.visit(child)

    def visit_If(self, node: ast.If) -> None:
        """`if TYPE_CHECKING:`, whose body does not run."""
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)
        else:
            for child in node.orelse:
                self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        """`import tensorflow.keras as keras`."""
        self._add(self._module_rules.of_import(node))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from tensorflow.python import ipu`."""
        self._add(self._module_rules.of_import_from(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """`tf.keras.layers.Dense`, as a whole."""
        name = self._names.resolve(node)
        if name is None:
            self._add(self._call_rules.of_attribute(node))
            self.generic_visit(node)
        elif not isinstance(node.ctx, ast.Store):
            self._add(self._name_rules.of_name(node, name, self._layer))

    def visit_Name(self, node: ast.Name) -> None:
        """`reduce_mean`, imported by its name."""
        name = self._names.resolve(node)
        if name is not None and "." in name and isinstance(node.ctx, ast.Load):
            self._add(self._name_rules.of_use(node, name, self._layer))

    def visit_Call(self, node: ast.Call) -> None:
        """Arguments and methods that no longer exist."""
        name = self._names.resolve(node.func)
        self._add(self._call_rules.of_call(node, name))
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            self._harmless(node)  # with a class that is not here, too
            return
        if self._layer and name is not None:
            self._add(of_random(node, name, self._layer))
        if name == "keras.layers.Lambda":
            self._within("Lambda", node)
        else:
            self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Layers and models: JAX traces their code."""
        bases = [self._names.resolve(base) or "" for base in node.bases]
        is_layer = any(base.startswith(("keras.layers.", "keras.Model")) for base in bases)
        self._add(of_class(node, bases))
        self._within(node.name if is_layer else "", node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """`config = IPUConfig()`, `config.matmuls.poplar_options = ...`."""
        for target in node.targets:
            path = _path(target)
            if path and path[0] in self._configs and len(path) > 1:
                self._add(_of_option(target, ".".join(path[1:])))
        called = self._names.resolve(node.value.func) if isinstance(node.value, ast.Call) else None
        if called in ("ipu.config.IPUConfig", "ipu.utils.IPUConfig"):
            self._configs |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Annotations are not code that uses what they name."""
        arguments = ast.walk(node.args)
        for each in (*(a.annotation for a in arguments if isinstance(a, ast.arg)), node.returns):
            if each is not None:
                self._harmless(each)
        for child in (*node.decorator_list, *node.args.defaults, *node.body):
            self.visit(child)
        for child in node.args.kw_defaults:
            if child is not None:
                self.visit(child)

    def _harmless(self, node: ast.AST) -> None:
        before, self._guard = self._guard, "runs as it is"
        self.generic_visit(node) if isinstance(node, ast.Call) else self.visit(node)
        self._guard = before

    def _within(self, name: str, node: ast.AST) -> None:
        before, self._layer = self._layer, name
        self.generic_visit(node)
        self._layer = before

    def _add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if self._guard and finding.blocks:
                finding = replace(finding, blocks=False, why=self._guard)
            self.findings.append(finding)


def _of_option(node: ast.AST, path: str) -> Iterable[Finding]:
    line = node.lineno  # type: ignore[attr-defined]
    is_option, advice = option(path)
    if not is_option:
        yield Finding(line, f"IPUConfig.{path}", advice)
    elif advice:
        yield Finding(line, f"IPUConfig.{path}, which has no effect", advice, blocks=False)


def _path(node: ast.AST) -> list[str]:
    """Returns the names in `config.matmuls.poplar_options`; none for another expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []
