"""The values that an expression of a program may have, without running the program.

    2 * REPLICAS                     -> [4]
    2 if args.both else 1            -> [1, 2], or one of them where `args.both` is decided
    args.replicas                    -> the command line's value, or else the default
    int(os.environ.get("N", "2"))    -> that of this environment
    json.load(file)["replicas"]      -> [UNKNOWN]

A superset: code that never runs counts as well, but for branches of an `if` whose test is decided.
"""

import ast
import enum
import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from millrace_ipu.porting.running.definitions import Given, NameScope, ProgramTables, last_name


class Unknown(enum.Enum):
    """Stands for a value that only running the program would tell."""

    UNKNOWN = "unknown"


UNKNOWN = Unknown.UNKNOWN
PossibleValues: TypeAlias = list[Any]

_MOST_VALUES = 64  # of one expression; more are unknown
_DEEPEST = 50  # expressions within expressions, and names that stand for names
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_OF_MATH = ("ceil", "floor", "log2", "prod")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "str": str, "bool": bool, "len": len, "max": max, "min": min,
    "sum": sum, "abs": abs, "list": list, "tuple": tuple, "round": round,
    "ceil": math.ceil, "floor": math.floor, "log2": math.log2, "prod": math.prod,
    "range": lambda *a: list(range(*a))[:_MOST_VALUES],
}  # fmt: skip


def values_of(
    program: ProgramTables, node: ast.expr | None, scope: NameScope, depth: int = 0
) -> PossibleValues:
    """Returns the possible values of an expression, UNKNOWN among them if others are possible.

    Args:
        program: the tables of its names.
        node: the expression; None for one that code computes.
        scope: in which it stands.
        depth: of expressions around it.
    """
    if node is None or depth > _DEEPEST:
        return [UNKNOWN]
    key = (node, scope)
    if key not in program.values:
        program.values[key] = [UNKNOWN]  # for an expression that needs its own value
        program.values[key] = _distinct(_Evaluator(program, scope, depth + 1).visit(node))
    return program.values[key]


def is_reachable(program: ProgramTables, node: ast.AST | None) -> bool:
    """Whether an assigned value or a call is in branches that the program may take.

    Args:
        program: the tables of its names.
        node: the value or the call.
    """
    return all(
        any(
            value is UNKNOWN or bool(value) is branch.is_taken
            for value in values_of(program, branch.test, branch.scope)
        )
        for branch in program.branches.get(node, ())  # type: ignore[arg-type]
    )


def _distinct(values: PossibleValues) -> PossibleValues:
    distinct: PossibleValues = []
    for value in values:
        if not any(value is each or _equal(value, each) for each in distinct):
            distinct.append(value)
        if len(distinct) > _MOST_VALUES:
            return [UNKNOWN]
    return distinct


def _equal(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


class _Evaluator(ast.NodeVisitor):
    """Evaluates the expressions of one scope."""

    def __init__(self, program: ProgramTables, scope: NameScope, depth: int):
        self.program, self.scope, self.depth = program, scope, depth

    def generic_visit(self, node: ast.AST) -> PossibleValues:
        return [UNKNOWN]

    def of(self, node: ast.expr | None, scope: NameScope | None = None) -> PossibleValues:
        return values_of(self.program, node, scope or self.scope, self.depth)

    def combined(self, nodes: Sequence[ast.expr], function: Callable[..., Any]) -> PossibleValues:
        """Returns the results of a function for all combinations of arguments."""
        combinations: list[tuple[Any, ...]] = [()]
        for node in nodes:
            values = self.of(node)
            combinations = [(*before, value) for before in combinations for value in values]
            if len(combinations) > _MOST_VALUES:
                return [UNKNOWN]
        return [_result(function, arguments) for arguments in combinations]

    def visit_Constant(self, node: ast.Constant) -> PossibleValues:
        return [node.value]

    def visit_List(self, node: ast.List) -> PossibleValues:
        return self.combined(node.elts, lambda *parts: list(parts))

    def visit_Tuple(self, node: ast.Tuple) -> PossibleValues:
        return self.combined(node.elts, lambda *parts: list(parts))

    def visit_BinOp(self, node: ast.BinOp) -> PossibleValues:
        function = _OPERATORS.get(type(node.op))
        if function is None and isinstance(node.op, ast.Pow):
            function = _power
        return [UNKNOWN] if function is None else self.combined([node.left, node.right], function)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> PossibleValues:
        negates = isinstance(node.op, ast.Not)
        function = operator.not_ if negates else operator.neg
        return self.combined([node.operand], function)

    def visit_BoolOp(self, node: ast.BoolOp) -> PossibleValues:
        stops = isinstance(node.op, ast.Or)
        found: PossibleValues = []
        for part in node.values[:-1]:
            values = self.of(part)
            found += [value for value in values if value is UNKNOWN or bool(value) is stops]
            if all(value is not UNKNOWN and bool(value) is stops for value in values):
                return found
        return found + self.of(node.values[-1])

    def visit_IfExp(self, node: ast.IfExp) -> PossibleValues:
        tests = self.of(node.test)
        chosen: PossibleValues = []
        if any(test is UNKNOWN or test for test in tests):
            chosen += self.of(node.body)
        if any(test is UNKNOWN or not test for test in tests):
            chosen += self.of(node.orelse)
        return chosen

    def visit_Compare(self, node: ast.Compare) -> PossibleValues:
        if len(node.ops) > 1:
            return [UNKNOWN]
        return self.combined([node.left, *node.comparators], _COMPARISONS[type(node.ops[0])])

    def visit_Name(self, node: ast.Name) -> PossibleValues:
        scope: NameScope | None = self.scope
        while scope is not None:
            if node.id in scope.names:
                return self._given(scope.names[node.id])
            if node.id in scope.imports:
                return self._imported(scope.imports[node.id])
            scope = scope.outer
        if node.id in self.program.options:  # a parameter that click gives
            return self._of_options(node.id)
        return [UNKNOWN]

    def visit_Attribute(self, node: ast.Attribute) -> PossibleValues:
        if node.attr == "argv" and last_name(node.value) == "sys":
            return [["", *self.program.arguments]]
        return self._attribute(node.attr)

    def _attribute(self, name: str) -> PossibleValues:
        if name in self.program.options:
            return self._of_options(name) + self._given(self.program.attributes.get(name, ()))
        if name in self.program.attributes:
            return self._given(self.program.attributes[name])
        return self._imported(name)  # settings.REPLICAS

    def visit_Subscript(self, node: ast.Subscript) -> PossibleValues:
        if last_name(node.value) == "environ":
            return [_environment(*arguments) for arguments in self._arguments([node.slice])]
        if isinstance(node.value, ast.Dict):
            return self._given([Given(value, self.scope) for value in node.value.values])
        values = self.combined([node.value, node.slice], operator.getitem)
        key = getattr(node.slice, "value", None)
        return self._attribute(key) if values == [UNKNOWN] and isinstance(key, str) else values

    def visit_Slice(self, node: ast.Slice) -> PossibleValues:
        parts = [part or ast.Constant(None) for part in (node.lower, node.upper, node.step)]
        return self.combined(parts, slice)

    def visit_ListComp(self, node: ast.ListComp) -> PossibleValues:
        if len(node.generators) != 1 or node.generators[0].ifs:
            return [UNKNOWN]
        lists, target = self.of(node.generators[0].iter), node.generators[0].target
        if not isinstance(target, ast.Name) or not all(isinstance(each, list) for each in lists):
            return [UNKNOWN]
        return [self._each(node.elt, target.id, values) for values in lists]

    def _each(self, node: ast.expr, name: str, values: PossibleValues) -> object:
        results: PossibleValues = []
        for value in values:
            inside = NameScope(self.scope)
            inside.names[name].append(Given(ast.Constant(value), inside))
            results += self.of(node, inside)[:1]
        return UNKNOWN if UNKNOWN in results else results

    def visit_Call(self, node: ast.Call) -> PossibleValues:
        name = last_name(node.func)
        if name in ("getenv", "get") and (name == "getenv" or _is_environ(node.func)):
            return [_environment(*arguments) for arguments in self._arguments(node.args)]
        if name in self.program.functions:
            return self._returned(name)
        is_plain = isinstance(node.func, ast.Name) or name in _OF_MATH
        if name in _FUNCTIONS and is_plain and not node.keywords:
            return self.combined(node.args, _FUNCTIONS[name])
        if name in ("strip", "lower", "upper", "split") and isinstance(node.func, ast.Attribute):
            return self.combined([node.func.value, *node.args], getattr(str, name))
        return [UNKNOWN]

    def _arguments(self, nodes: Sequence[ast.expr]) -> Iterator[tuple[Any, ...]]:
        """Yields the combinations of the values of arguments."""
        combinations = self.combined(nodes, lambda *values: values)
        return (each if isinstance(each, tuple) else (each,) for each in combinations)

    def _given(self, definitions: Sequence[Given]) -> PossibleValues:
        found: PossibleValues = []
        for each in definitions:
            if not is_reachable(self.program, each.value):
                continue
            values = self.of(each.value, each.scope)
            if each.is_element:
                values = [part for value in values for part in _elements(value)]
            found += values
        return found

    def _imported(self, name: str) -> PossibleValues:
        """Returns the values of a name of any module of the program."""
        given = [each for scope in self.program.modules.values() for each in scope.names[name]]
        return self._given(given) if given else [UNKNOWN]

    def _returned(self, name: str) -> PossibleValues:
        found: PossibleValues = []
        for node, inside, _ in self.program.functions[name]:
            for statement in ast.walk(node):
                if isinstance(statement, ast.Return) and statement.value is not None:
                    found += self.of(statement.value, inside)
        return found or [UNKNOWN]

    def _of_options(self, name: str) -> PossibleValues:
        """Returns the values of an option on the command line, or else its defaults."""
        found: PossibleValues = []
        for call, scope in self.program.options[name]:
            evaluate = _Evaluator(self.program, scope, self.depth)
            found += evaluate._option(call, name)
        return found

    def _option(self, call: ast.Call, name: str) -> PossibleValues:
        keywords = {each.arg: each.value for each in call.keywords}
        is_absl = last_name(call.func).startswith("DEFINE_")
        texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
        flags = [str(t) for t in texts if str(t).startswith("-")]
        if is_absl:
            flags = [f"--{name}"]
        if not flags:  # a positional argument: any of them
            return [_number(each) for each in self.program.arguments] or [UNKNOWN]
        default = call.args[1] if is_absl and len(call.args) > 1 else keywords.get("default")
        action = keywords.get("action")
        words = list(given_on(self.program.arguments, flags))
        if isinstance(action, ast.Constant) and str(action.value).startswith("store_"):
            stored = action.value == "store_true"
            return [stored if words else not stored]
        if "nargs" in keywords and words:
            return [[_number(each) for each in words]]
        if words:
            return [_number(words[-1])]
        return self.of(default) if default is not None else [None]


def given_on(arguments: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Yields the words that follow an option on a command line; an empty one if there are none.

    Args:
        arguments: the command line.
        flags: spellings of the option, such as `--replicas` and `-r`.
    """
    for k, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        is_short = any(len(f) == 2 and word.startswith(f) and len(word) > 2 for f in flags)
        if flag in flags or (len(flag) > 3 and any(f.startswith(flag) for f in flags)):
            if equals:
                yield value
                continue
            rest = arguments[k + 1 :]
            end = next((j for j, each in enumerate(rest) if each.startswith("-")), len(rest))
            yield from rest[:end] or [""]
        elif is_short and not word.startswith("--"):
            yield word[2:]


def _result(function: Callable[..., Any], arguments: tuple[Any, ...]) -> object:
    if any(argument is UNKNOWN for argument in arguments):
        return UNKNOWN
    try:
        return function(*arguments)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        return UNKNOWN


def _power(base: Any, exponent: Any) -> Any:
    return base**exponent if abs(exponent) < 32 and abs(base) < 1 << 16 else UNKNOWN


def _elements(value: object) -> PossibleValues:
    return value if isinstance(value, list) else [UNKNOWN]


def _number(text: str) -> object:
    return int(text) if text.lstrip("-").isdecimal() else text


def _environment(name: object = None, default: object = None) -> object:
    return os.environ.get(name, default) if isinstance(name, str) else UNKNOWN


def _is_environ(node: ast.expr) -> bool:
    return last_name(getattr(node, "value", node)) == "environ"
