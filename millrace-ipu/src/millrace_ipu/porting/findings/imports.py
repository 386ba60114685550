"""The import statements of a program, as millrace has the same modules.

import tensorflow as tf                             from millrace_ipu import tensorflow as tf
from tensorflow.python.ipu.config import IPUConfig  from millrace_ipu.ipu.config import IPUConfig
from tensorflow import keras                        import millrace  # first: ...
                                                    import keras
tf.python.ipu.utils.f()                             ipu.utils.f(), and its import

Keras chooses its backend when it is imported, so an import of millrace comes before it.
"""

import ast
from collections.abc import Iterator

from millrace.extend import is_own_module
from millrace_ipu.porting.findings.program import OwnModule, PortedProgram
from millrace_ipu.porting.findings.source_text import TextEdit
from millrace_ipu.porting.replacements import HOMES, canonical, name_now

FIRST = "import millrace  # before keras: it makes JAX the backend of Keras"
# Prefixes of what programs spell, which millrace_ipu.tensorflow and Keras do not have themselves.
_SERVED = ("tensorflow.python", "tensorflow.compat.v1.keras", "tensorflow.compiler", "keras.ipu")
_SERVED += ("tensorflow.keras.ipu", "tf_keras")


class ImportRules:
    """The edits of the imports of a file.

    Args:
        program: the program that the file is part of.
        module: the file.
    """

    def __init__(self, program: PortedProgram, module: OwnModule) -> None:
        self._program, self._module = program, module
        self._tree, self._source = module.tree, module.source
        self._bound = dict(_bound(module.tree))
        self._needed: set[str] = set()

    def edits(self) -> list[TextEdit]:
        """Returns the edits of all import statements, and the imports that they need."""
        edits = [each for node in ast.walk(self._tree) for each in self._of(node)]
        changed = self._source.with_edits(edits) if edits else self._source.text
        needed = sorted(self._needed)  # those of millrace come first
        if _needs_millrace_first(ast.parse("\n".join([*needed, changed]))):
            needed.insert(0, FIRST)
        return [*edits, self._added(needed)] if needed else edits

    def spelling(self, name: str) -> str:
        """Returns the expression for a canonical name, with the imports that the program has.

        A name that none of them gives is imported, too.
        """
        best = max(
            (each for each in self._bound.items() if _begins(name, each[1])),
            key=lambda each: len(each[1]),
            default=None,
        )
        if best is not None:
            return best[0] + name[len(best[1]) :]
        root = name.partition(".")[0]
        if root in HOMES:
            self._needed.add(_from(root, root))
        return name

    def spelled_anew(self, spelled: str) -> str | None:
        """Returns the expression for a name that no longer exists as it is spelled.

        Args:
            spelled: the dotted name as the program's imports spell it.
        """
        if not any(_begins(spelled, prefix) for prefix in _SERVED):
            return None
        name = name_now(canonical(spelled))
        return self.spelling(name) if name.partition(".")[0] in HOMES else None

    def _of(self, node: ast.AST) -> Iterator[TextEdit]:
        if isinstance(node, ast.Import):
            lines = [self._plain(alias) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if self._program.is_own(self._module, node.module, 0):
                return
            lines = [self._member(node.module, alias) for alias in node.names]
        else:
            return
        if all(line is None for line in lines):
            return
        texts = [
            line or _statement(node, alias) for line, alias in zip(lines, node.names, strict=True)
        ]
        modules = {text.partition(" import ")[0] for text in texts}
        if isinstance(node, ast.ImportFrom) and len(modules) == 1 and _keep(node, texts):
            start, _ = self._source.span(node)
            at = self._source.text.index(node.module or "", start + len("from"))
            module = modules.pop().removeprefix("from ")
            yield TextEdit(at, at + len(node.module or ""), module)
            return
        yield self._source.replaced(node, self._joined(node, list(dict.fromkeys(texts))))

    def _plain(self, alias: ast.alias) -> str | None:
        """`import tensorflow.keras as keras`."""
        name = alias.name
        if self._program.is_own(self._module, name, 0):
            return None
        served = self._program.served_by(self._module, name)
        if served is not None:
            return _from(served, alias.asname or name)
        if alias.asname is None and name.startswith("keras.ipu"):
            return "import keras"
        if alias.asname is None and name.partition(".")[0] == "tensorflow":
            return "from millrace_ipu import tensorflow"
        new = name_now(canonical(name))
        if new.partition(".")[0] not in HOMES or is_own_module(name):
            return None
        if new == name and name.startswith("keras"):
            return None
        return _from(new, alias.asname or name)

    def _member(self, module: str, alias: ast.alias) -> str | None:
        """`from tensorflow.python import ipu`."""
        name = f"{module}.{alias.name}"
        served = self._program.served_by(self._module, module)
        if served is not None:
            return _from(f"{served}.{alias.name}", alias.asname or alias.name)
        if is_own_module(name):
            return None
        new = name_now(canonical(name))
        if (new == name and name.startswith("keras")) or new.partition(".")[0] not in HOMES:
            return None
        return _from(new, alias.asname or alias.name)

    def _joined(self, node: ast.stmt, texts: list[str]) -> str:
        start, _ = self._source.span(node)
        indent = self._source.text[self._source.offset(node.lineno, 0) : start]
        is_alone = not indent.strip()
        return (f"{self._source.newline}{indent}" if is_alone else "; ").join(texts)

    def _added(self, texts: list[str]) -> TextEdit:
        """Returns the edit that adds imports: before the first one that is not `__future__`."""
        line = 1
        for node in self._tree.body:
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            line = min([node.lineno, *(each.lineno for each in decorators)])
            is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            if not is_doc and not is_future:
                break
        at, newline = self._source.offset(line, 0), self._source.newline
        return TextEdit(at, at, "".join(f"{text}{newline}" for text in texts))


def _from(name: str, bound: str) -> str:
    """Returns the statement that binds a canonical name."""
    root, *rest = name.split(".")
    *homes, last = [*HOMES[root].split("."), *rest]
    renamed = "" if bound == last else f" as {bound}"
    home = ".".join(homes)
    return f"from {home} import {last}{renamed}" if home else f"import {last}{renamed}"


def _keep(node: ast.ImportFrom, texts: list[str]) -> bool:
    """Whether only the module of a statement changes."""
    return all(
        text.partition(" import ")[2] == ast.unparse(alias)
        for text, alias in zip(texts, node.names, strict=True)
    )


def _statement(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    start = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
    return f"{start}import {ast.unparse(alias)}"


def _bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the names that the module's own imports bind, each with its canonical name."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or bound, name_now(canonical(bound))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                name = name_now(canonical(f"{node.module}.{alias.name}"))
                yield alias.asname or alias.name, name


def _begins(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _needs_millrace_first(tree: ast.Module) -> bool:
    """Whether Keras is imported before millrace."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        else:
            continue
        if any(map(is_own_module, modules)):
            return False
        if any(module.partition(".")[0] == "keras" for module in modules):
            return True
    return False
