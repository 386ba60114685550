"""The number of devices that a program will ask for, from its text and its command line.

    config.auto_select_ipus = 2                      2
    config.auto_select_ipus = [1, args.replicas]     1 + the number on the command line
    config.select_ipus = [0, 3]                      4, since device 3 is the fourth
    utils.auto_select_ipus(config, 2)                2
    setattr(config, "auto_select_ipus", 2)           2
    millrace.Strategy("cpu:2")                       2
    config.auto_select_ipus = json.load(f)["ipus"]   COMPUTED

The largest request counts. JAX fixes the number of virtual CPU devices at its first use, which a
program may make before it configures its devices.
"""

import ast
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from millrace.extend import ask_for_virtual, backends_are_initialized
from millrace_ipu.porting.running.definitions import NameScope, ProgramTables, tables_of
from millrace_ipu.porting.running.possible_values import (
    UNKNOWN,
    PossibleValues,
    is_reachable,
    values_of,
)
from millrace_ipu.porting.running.program_text import read_program

# For a program that computes its number: as many IPUs as the usual machine had. More devices than
# cores cost a program that uses one of them time, since XLA shares out operations over as many
# threads as there are devices (two cores, dense layers of 256: 1.2x with 4 devices, 1.5x with 8,
# 1.7x with 16). So a program that asks for one device, or for none, gets one.
COMPUTED = 16
_AUTO, _SELECT = "auto_select_ipus", "select_ipus"


def make_devices(script: str, arguments: Sequence[str]) -> None:
    """Has JAX make as many virtual CPU devices as a program will ask for.

    Without effect if JAX has started, if the user has set the number, or on another platform.

    Args:
        script: path of the program.
        arguments: of its command line.
    """
    if not backends_are_initialized():
        number = devices_asked_for(pathlib.Path(script), arguments)
        if number > 1:
            ask_for_virtual(number)


def devices_asked_for(script: pathlib.Path, arguments: Sequence[str] = ()) -> int:
    """Returns the largest number of devices that a program may ask for; 0 if it asks for none.

    Args:
        script: path of the program.
        arguments: of its command line.
    """
    program = tables_of(read_program(script), arguments)
    return max((_number(each) for each in _requests(program)), default=0)


def _requests(program: ProgramTables) -> Iterator[object]:
    """Yields the numbers of devices of all requests."""
    for name in (_AUTO, _SELECT):
        for given in program.attributes.get(name, ()):
            if is_reachable(program, given.value):
                yield from _counts(values_of(program, given.value, given.scope), name)
        for call, scope in program.calls.get(name, ()):
            if name not in program.functions and is_reachable(program, call):
                yield from _counts(_argument(program, call, scope, 1), name)
    for call, scope in program.calls.get("setattr", ()):
        is_request = len(call.args) == 3 and is_reachable(program, call)
        names = values_of(program, call.args[1], scope) if is_request else []
        for name in {_AUTO, _SELECT}.intersection(map(str, names)):
            yield from _counts(values_of(program, call.args[2], scope), name)
    for call, scope in program.calls.get("Strategy", ()):
        for value in _argument(program, call, scope, 0):
            match = re.fullmatch(r"cpu:(\d+)", str(value))
            if match:
                yield int(match[1])


def _argument(
    program: ProgramTables, call: ast.Call, scope: NameScope, index: int
) -> PossibleValues:
    names = ("num_ipus", "indices", "devices")
    node = next((each.value for each in call.keywords if each.arg in names), None)
    if node is None and len(call.args) > index:
        node = call.args[index]
    return [] if node is None else values_of(program, node, scope)


def _counts(values: PossibleValues, name: str) -> Iterator[object]:
    """Yields the number of devices that each value of an option takes."""
    for value in values:
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(n, int | float) for n in numbers):
            # A number that is not set is no request.
            yield 0 if value is None else UNKNOWN
        elif name == _AUTO:
            yield int(sum(numbers))
        else:
            yield int(max(numbers, default=-1)) + 1


def _number(count: object) -> int:
    return count if isinstance(count, int) else max(COMPUTED, os.cpu_count() or 1)
