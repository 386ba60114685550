"""The import statements of a program, as millrace has the same modules.

import tensorflow as tf                             from millrace_ipu import tensorflow as tf
from tensorflow.python.ipu.config import IPUConfig  from millrace_ipu.ipu.config import IPUConfig
from tensorflow import keras                        import millrace  # first: ...
                                                    import keras
tf.python.ipu.utils.f()                             ipu.utils.f(), and its import

Keras chooses its backend when it is imported, so an import of millrace comes before it.
"""

import ast
from collections.abc import Callable, Iterator

from millrace.extend import is_own_module
from millrace_ipu.porting.findings.finding import TextEdit, replaced, start_of
from millrace_ipu.porting.findings.source_text import SourceText
from millrace_ipu.porting.replacements import canonical

FIRST = "import millrace  # before keras: it makes JAX the backend of Keras"
_OWN = ("ipu", "tensorflow", "keras")
_HOME = {"ipu": "millrace_ipu.ipu", "tensorflow": "millrace_ipu.tensorflow", "keras": "keras"}
# Prefixes of what programs spell, which millrace_ipu.tensorflow and Keras do not have themselves.
_SERVED = ("tensorflow.python", "tensorflow.compat.v1.keras", "tensorflow.compiler", "keras.ipu")
_SERVED += ("tensorflow.keras.ipu", "tf_keras")

Rename = Callable[[str], str]
ServedBy = Callable[[str], str | None]
IsOwn = Callable[[str, int], object]


class ImportRules:
    """The edits of a program's imports.

    Args:
        tree: syntax tree of the program.
        source: its text.
        is_own: whether a module, by name and number of leading dots, is part of the program.
        served_by: returns the canonical name of the module in place of one of the program's own.
        rename: returns the canonical name of today for a canonical name.
    """

    def __init__(
        self,
        tree: ast.Module,
        source: SourceText,
        is_own: IsOwn,
        served_by: ServedBy,
        rename: Rename,
    ) -> None:
        self._tree, self._source, self._is_own = tree, source, is_own
        self._served_by, self._rename = served_by, rename
        self._bound = dict(_bound(tree, rename))
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
        if root not in _OWN:
            return name
        self._needed.add(f"import {root}" if root == "keras" else f"from millrace import {root}")
        return name

    def spelled_anew(self, spelled: str) -> str | None:
        """Returns the expression for a name that no longer exists as it is spelled.

        Args:
            spelled: the dotted name as the program's imports spell it.
        """
        if not any(_begins(spelled, prefix) for prefix in _SERVED):
            return None
        name = self._rename(canonical(spelled))
        return self.spelling(name) if name.partition(".")[0] in _OWN else None

    def _of(self, node: ast.AST) -> Iterator[TextEdit]:
        if isinstance(node, ast.Import):
            lines = [self._plain(alias) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if self._is_own(node.module, 0):
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
            start = self._source.offset(start_of(node))
            at = self._source.text.index(node.module or "", start + len("from"))
            module = modules.pop().removeprefix("from ")
            yield self._source.edit(at, at + len(node.module or ""), module)
            return
        yield replaced(node, self._joined(node, list(dict.fromkeys(texts))))

    def _plain(self, alias: ast.alias) -> str | None:
        """`import tensorflow.keras as keras`."""
        name = alias.name
        if self._is_own(name, 0):
            return None
        served = self._served_by(name)
        if served is not None:
            return _from(served, alias.asname or name)
        if alias.asname is None and name.startswith("keras.ipu"):
            return "import keras"
        if alias.asname is None and name.partition(".")[0] == "tensorflow":
            return "from millrace_ipu import tensorflow"
        new = self._rename(canonical(name))
        if new.partition(".")[0] not in _OWN or is_own_module(name):
            return None
        if new == name and name.startswith("keras"):
            return None
        return _from(new, alias.asname or name)

    def _member(self, module: str, alias: ast.alias) -> str | None:
        """`from tensorflow.python import ipu`."""
        name = f"{module}.{alias.name}"
        served = self._served_by(module)
        if served is not None:
            return _from(f"{served}.{alias.name}", alias.asname or alias.name)
        if is_own_module(name):
            return None
        new = self._rename(canonical(name))
        if (new == name and name.startswith("keras")) or new.partition(".")[0] not in _OWN:
            return None
        if "(" in new or "'" in new or " " in new:
            new = canonical(name)
        return _from(new, alias.asname or alias.name)

    def _joined(self, node: ast.AST, texts: list[str]) -> str:
        start = self._source.offset(start_of(node))
        line = self._source.offset((start_of(node)[0], 0))
        indent = self._source.text[line:start]
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
        newline = self._source.newline
        return TextEdit((line, 0), (line, 0), "".join(f"{text}{newline}" for text in texts))


def _from(name: str, bound: str) -> str:
    """Returns the statement that binds a canonical name."""
    root, _, rest = name.partition(".")
    if not rest:
        home, last = ("", root) if root == "keras" else ("millrace_ipu", root)
    else:
        inner, _, last = rest.rpartition(".")
        home = ".".join(filter(None, (_HOME[root], inner)))
    renamed = "" if bound == last else f" as {bound}"
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


def _bound(tree: ast.Module, rename: Rename) -> Iterator[tuple[str, str]]:
    """Yields the names that the module's own imports bind, each with its canonical name."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or bound, rename(canonical(bound))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                name = rename(canonical(f"{node.module}.{alias.name}"))
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
        roots = {module.partition(".")[0] for module in modules}
        if any(map(is_own_module, roots)):
            return False
        if "keras" in roots:
            return True
    return False
