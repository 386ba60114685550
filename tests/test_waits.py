"""No function that XLA calls waits: XLA's threads are few, and what it waits for may need one.

A wait: a lock, a thread's end, a queue, a result, or the numbers of a JAX array, which are copied
by a thread of XLA. The functions are found in the source: those that are passed to a callback of
JAX, and all functions of millrace that these call, by name.
"""

import ast
import pathlib

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "millrace"
# Functions of JAX that make a program call their first argument, or another one of these.
CALLED_BY_XLA = {"io_callback", "pure_callback", "callback", "register", "custom_partitioning"}
MODULES = {"callback": "debug", "register": "xla_functions"}  # where the name alone is too common
WAITS = {"acquire", "join", "result", "get", "wait", "recv", "block_until_ready", "item", "tolist"}
CONVERTS = {"asarray", "array", "float", "int", "str", "repr", "print", "format", "device_get"}


def trees():
    return {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def name_of(node):
    return getattr(node, "attr", getattr(node, "id", None))


def functions(tree):
    """Yields all functions of a module, also within others, and lambdas."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node


def roots(tree):
    """Yields the functions of a module that XLA calls."""
    own = {each.name: each for each in functions(tree) if not isinstance(each, ast.Lambda)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or name_of(node.func) not in CALLED_BY_XLA:
            continue
        module = MODULES.get(name_of(node.func))
        if module is not None and name_of(getattr(node.func, "value", None)) != module:
            continue
        for argument in node.args:
            if isinstance(argument, ast.Lambda):
                yield argument
            elif name_of(argument) in own:
                yield own[name_of(argument)]


def waits(function):
    """Yields the waits in one function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and name_of(node.func) in WAITS | CONVERTS:
            yield node.lineno, name_of(node.func)
        elif isinstance(node, ast.FormattedValue):
            yield node.lineno, "an f-string"
        elif isinstance(node, ast.With):
            for item in node.items:
                if "lock" in (name_of(item.context_expr) or "").lower():
                    yield node.lineno, "a lock"


def called(function, path, by_name):
    """Yields the functions of millrace that one calls, by a name of its module or its import, or
    by the name of a method that only one has.
    """
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and (name := name_of(node.func)) is not None:
            near = [each for each in by_name.get(name, ()) if each[0] == path]
            found = near or by_name.get(name, [])
            yield from found if near or len(found) == 1 else ()


def reached_waits(modules):
    """Returns the waits that XLA reaches, as texts."""
    by_name = {}
    for path, tree in modules.items():
        for each in functions(tree):
            by_name.setdefault(getattr(each, "name", None), []).append((path, each))
    pending = [(path, each) for path, tree in modules.items() for each in roots(tree)]
    seen, found = set(), []
    while pending:
        path, function = pending.pop()
        if id(function) not in seen:
            seen.add(id(function))
            found += [f"{path.name}:{line}: {what}" for line, what in waits(function)]
            pending += called(function, path, by_name)
    return found


def test_nothing_that_xla_calls_waits():
    modules = trees()
    assert len(modules) > 400
    assert reached_waits(modules) == []


def test_waits_are_found():
    program = """
def add_up(values):
    with self._lock:
        return helper(values)

def helper(values):
    return np.asarray(values), f"{values}", queue.get()

def other():
    thread.join()

io_callback(add_up, spec, x)
jax.debug.callback(lambda x: print(x), x)
atexit.register(other)
"""
    found = reached_waits({pathlib.Path("p.py"): ast.parse(program)})
    assert sorted(each.partition(": ")[2] for each in found) == [
        "a lock",
        "an f-string",
        "asarray",
        "get",
        "print",
    ]
