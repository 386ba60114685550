"""The functions of a program that nothing in it refers to, and which thus do not run.

    def old_loader(): ...       no name or attribute `old_loader` in code that runs: not reached
    class Net(keras.Model):     reached where `Net` is; Keras calls its methods
    if args.profile:            False by default: reached only with --profile

Only for programs that do something when they start. In a file of definitions all are reached.
"""

import ast
from collections.abc import Iterable, Iterator

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_BY_NAME = {"getattr", "globals", "locals", "vars", "eval", "exec", "import_module"}


def unreached(scripts: Iterable[ast.Module], modules: Iterable[ast.Module]) -> set[int]:
    """Returns the ids of the definitions that no code refers to.

    Args:
        scripts: the files that are started.
        modules: all files of the program; those that are not scripts are imported.
    """
    modules = [*modules]
    if not any(_starts_work(tree) for tree in scripts):
        return set()
    definitions = [each for tree in modules for each in _definitions(tree)]
    names: set[str] = set()
    waiting: list[ast.AST] = []
    for tree in modules:
        waiting += [node for node in tree.body if not isinstance(node, Definition)]
    left = {id(each): each for each in definitions}
    while waiting:
        for node in waiting:
            names |= set(_names(node))
        if names & _BY_NAME:
            return set()
        reached = [each for each in left.values() if each.name in names or _is_called(each)]
        waiting = []
        for each in reached:
            del left[id(each)]
            waiting.append(each)
    return {*left}


def switched_off(tree: ast.Module) -> dict[int, str]:
    """Returns the ids of the branches that flags of the command line start, with the flag.

    `parser.add_argument("--profile", action="store_true")` makes `if args.profile:` such a branch.
    """
    flags = dict(_flags(tree))
    branches: dict[int, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.If):
            continue
        test, body = node.test, node.body
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, body = test.operand, node.orelse
        terms = test.values if isinstance(test, ast.BoolOp) else [test]
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
            terms = []
        for term in terms:
            name = getattr(term, "attr", getattr(term, "id", None))
            if name in flags and isinstance(term, ast.Attribute):
                branches.update({id(each): flags[name] for each in body})
    return branches


def _starts_work(tree: ast.Module) -> bool:
    """Whether a file does more than to define and to import."""
    quiet = (*Definition.__args__, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)  # type: ignore[attr-defined]
    return any(
        not isinstance(node, quiet)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in tree.body
    )


def _definitions(tree: ast.AST) -> Iterator[Definition]:
    """Yields the functions and classes of a module, and the methods of its own plain classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            yield node
        if isinstance(node, ast.ClassDef) and not node.bases:
            yield from (each for each in node.body if isinstance(each, ast.FunctionDef))


def _is_called(node: Definition) -> bool:
    """Whether others call a definition: by a decorator, or as a special method."""
    return bool(node.decorator_list) or (node.name.startswith("__") and node.name.endswith("__"))


def _names(node: ast.AST) -> Iterator[str]:
    """Yields the names that code reads, without those in the methods of plain classes."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    is_plain = isinstance(node, ast.ClassDef) and not node.bases
    for child in ast.iter_child_nodes(node):
        if not (is_plain and isinstance(child, ast.FunctionDef)):
            yield from _names(child)


def _flags(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the attribute and the flag of each argument that is off by default."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        options = [each.value for each in node.args if isinstance(each, ast.Constant)]
        keywords = {each.arg: each.value for each in node.keywords}
        long = next((each for each in options if str(each).startswith("--")), None)
        if long is None or isinstance(keywords.get("required"), ast.Constant):
            continue
        action = getattr(keywords.get("action"), "value", None)
        default = keywords.get("default")
        value = getattr(default, "value", None) if default is not None else None
        is_constant = default is None or isinstance(default, ast.Constant)
        if action in (None, "store_true", "store") and is_constant and not value:
            destination = getattr(keywords.get("dest"), "value", None)
            yield destination or str(long).strip("-").replace("-", "_"), str(long)
