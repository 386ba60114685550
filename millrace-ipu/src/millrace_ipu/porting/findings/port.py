"""The parts of a program that will not run on millrace, line by line.

source -> syntax tree -> names, calls and imports under their full names
       -> Finding(line, what, instead, blocks, edits)

They are found by names alone: the classes of objects are not known. What `millrace run` mends runs
as it is. `rewrite` changes what is mechanical, and leaves all else as it is: findings with edits,
imports -> edits -> new text -> findings ... until nothing changes.
"""

import ast
import difflib
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from millrace_ipu.porting.findings.habits import HabitRules
from millrace_ipu.porting.findings.imports import ImportRules
from millrace_ipu.porting.findings.names import NameRules
from millrace_ipu.porting.findings.program import OwnModule, PortedProgram
from millrace_ipu.porting.findings.source_text import Finding, SourceText

_GUARDS = ("ImportError", "ModuleNotFoundError", "Exception", "AttributeError", "BaseException")
_MOST_PASSES = 10  # of a rewriting: edits within others are made in the pass after
_SERVED = ("tensorflow", "ipu_tensorflow_addons", "tf_keras")


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
    return port_program(PortedProgram([], source))[0].shown


def port_program(program: PortedProgram) -> list[FileFindings]:
    """Returns the findings of all files of a program."""
    is_served = any(uses_tensorflow(program, module) for module in program.modules)
    return [_of_module(program, module, is_served) for module in program.modules]


def uses_tensorflow(program: PortedProgram, module: OwnModule) -> bool:
    """Whether a file imports TensorFlow, or an IPU package other than millrace's."""
    names = program.names(module).imported.values()
    roots = {name.partition(".")[0] for name in names}
    return not roots.isdisjoint(_SERVED) or "keras.ipu" in module.source.text


def _of_module(program: PortedProgram, module: OwnModule, is_served: bool) -> FileFindings:
    visitor = _FindingVisitor(program, module, is_served)
    visitor.visit(module.tree)
    found = visitor.findings
    unique = {(each.line, each.what, "" if each.what else each.edits): each for each in found}
    ordered = sorted(unique.values(), key=lambda finding: (finding.line, finding.what))
    return FileFindings(module, tuple(ordered), visitor.imports)


class _FindingVisitor(ast.NodeVisitor):
    """Collects the findings of a file."""

    def __init__(self, program: PortedProgram, module: OwnModule, is_served: bool) -> None:
        self.findings: list[Finding] = []
        self.imports = ImportRules(program, module)
        self._names = program.names(module)
        self._rules = NameRules(program, module, self._names, self.imports, is_served)
        self._habits = HabitRules(module.source, is_served, program.defined())
        self._guard = ""  # why the code at the current node does not stop the program

    def visit_Try(self, node: ast.Try) -> None:
        """Code whose errors the program handles itself."""
        handled = " ".join(ast.unparse(h.type) if h.type else "Exception" for h in node.handlers)
        is_guarded = any(name in handled for name in _GUARDS)
        self._visit_all(node.body, "its error is handled" if is_guarded else "")
        self._visit_all(node.handlers, "only after an error" if is_guarded else "")
        self._visit_all([*node.orelse, *node.finalbody])

    def visit_Import(self, node: ast.Import) -> None:
        """`import tensorflow.keras as keras`."""
        self._add(self._rules.of_import(node))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from tensorflow.python import ipu`."""
        self._add(self._rules.of_import(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """`tf.keras.layers.Dense`, as a whole; `model.optimizer.lr`."""
        name = self._names.resolve(node)
        if name is None:
            self._add(self._habits.of_attribute(node))
            self.visit(node.value)
        elif not isinstance(node.ctx, ast.Store):
            self._add(self._rules.of_use(node, name))

    def visit_Name(self, node: ast.Name) -> None:
        """`reduce_mean`, imported by its name."""
        name = self._names.resolve(node)
        if name is not None and "." in name and isinstance(node.ctx, ast.Load):
            self._add(self._rules.of_use(node, name))

    def visit_Call(self, node: ast.Call) -> None:
        """Arguments and methods that no longer exist."""
        name = self._names.resolve(node.func)
        self._add(self._habits.of_call(node, name))
        is_method = name is None and isinstance(node.func, ast.Attribute)
        self.visit(node.func.value if is_method else node.func)  # type: ignore[attr-defined]
        # A class that is not here may be one of those that an object is compared with.
        is_test = isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
        self._visit_all([*node.args, *node.keywords], "runs as it is" if is_test else "")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Annotations are not code that uses what they name."""
        arguments = [each for each in ast.walk(node.args) if isinstance(each, ast.arg)]
        annotations = [*(each.annotation for each in arguments), node.returns]
        self._visit_all([each for each in annotations if each], "runs as it is")
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        self._visit_all([*node.decorator_list, *defaults, *node.body])

    def _visit_all(self, nodes: Iterable[ast.AST], guard: str = "") -> None:
        before, self._guard = self._guard, guard or self._guard
        for node in nodes:
            self.visit(node)
        self._guard = before

    def _add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if self._guard and finding.blocks:
                finding = replace(finding, blocks=False, why=self._guard)
            self.findings.append(finding)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file of a program before and after."""

    path: pathlib.Path
    before: str
    after: str
    encoding: str

    def diff(self) -> list[str]:
        """Returns the lines of a unified diff, without line endings."""
        old, new = (text.splitlines() for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm="")
        return [*lines]

    def write(self) -> None:
        """Writes the new text into the file, in its encoding.

        Raises:
            OSError: if it cannot be written.
        """
        self.path.write_bytes(self.after.encode(self.encoding))


def rewrite(program: PortedProgram) -> list[Rewritten]:
    """Returns the files of a program that change, with their new texts.

    The program itself has the new texts afterwards. Nothing is written.
    """
    before = program.modules
    for _ in range(_MOST_PASSES):
        texts = [
            file.module.source.with_edits(
                [*(e for each in file.findings for e in each.edits), *file.imports.edits()]
            )
            for file in port_program(program)
        ]
        if texts == [module.source.text for module in program.modules]:
            break
        program.replace([_with_text(*each) for each in zip(program.modules, texts, strict=True)])
    return [
        Rewritten(old.path, old.source.text, new.source.text, old.encoding)
        for old, new in zip(before, program.modules, strict=True)
        if old.source.text != new.source.text
    ]


def _with_text(module: OwnModule, text: str) -> OwnModule:
    return replace(module, source=SourceText(text), tree=ast.parse(text))
