"""Private JAX: what is known of a program that a target's compiler refuses, for lack of memory.

The compiler for TPU makes no executable of a program that the memory of its device does not hold,
and says how much it takes. Stands in for the `jax.stages.Compiled` where only its size is asked
for, so that a report, a budget or a plan goes on to what fits. Checked on jax 0.10.2.
"""

import re
from types import SimpleNamespace
from typing import Any

import jax

from millrace._compat.jax_executables import argument_sizes
from millrace._compat.jax_memory import is_out_of_memory
from millrace._compat.jax_targets import is_described

# "the total memory required for HLO temporaries (18.90G) exceeds", arguments included, or
# "Used 17.54G of 15.75G hbm"
_NEEDED = re.compile(r"HLO temporaries \(([\d.]+)([KMG])\)|Used ([\d.]+)([KMG]) of [\d.]+G hbm")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class RefusedProgram:
    """A program that was lowered, and its size; it cannot run."""

    def __init__(self, lowered: jax.stages.Lowered, nbytes: int):
        """Takes what a `Compiled` would say.

        Args:
            lowered: the program.
            nbytes: that it takes on a device, as the compiler said, to three digits.
        """
        lowering: Any = lowered._lowering  # type: ignore[attr-defined]
        self.args_info, self.in_tree, self.out_tree = (
            lowered.args_info,
            lowered.in_tree,
            lowered.out_tree,
        )
        kept = sorted(lowering.compile_args["kept_var_idx"])
        shardings: dict[int, Any] = dict(
            zip(kept, lowering.compile_args["in_shardings"], strict=True)
        )
        self.input_shardings = [
            shardings.get(number) for number in range(len(jax.tree.leaves(self.args_info)))
        ]
        unloaded = SimpleNamespace(device_list=lowering._device_list)
        self._executable = SimpleNamespace(_kept_var_idx=set(kept), _unloaded_executable=unloaded)
        self._lowered, self.nbytes = lowered, nbytes

    def __call__(self, *_: object) -> None:
        raise RuntimeError("a program that was refused by the compiler of a target cannot run")

    def memory_analysis(self) -> Any:
        """Returns all bytes as temporaries, but for the arguments."""
        arguments = sum(argument_sizes(self))  # type: ignore[arg-type]
        fields = ("argument", "output", "alias", "temp")
        sizes = (arguments, 0, 0, max(0, self.nbytes - arguments))
        named = {f"{field}_size_in_bytes": n for field, n in zip(fields, sizes, strict=True)}
        host = {f"host_{name}": 0 for name in named}
        return SimpleNamespace(**named, **host, generated_code_size_in_bytes=0)

    def runtime_executable(self) -> Any:
        """Returns what has the module as it was lowered, before any optimization."""
        return SimpleNamespace(hlo_modules=lambda: [self._lowered.compiler_ir("hlo")])


def with_trees_of(compiled: Any, lowered: jax.stages.Lowered) -> Any:
    """Returns the executable of an equal program, for another device of a target.

    Args:
        compiled: the executable, or what stands in for it.
        lowered: the program, with its own trees of arguments and results.
    """
    if isinstance(compiled, RefusedProgram):
        return RefusedProgram(lowered, compiled.nbytes)
    return jax.stages.Compiled(
        compiled._executable, [], lowered.args_info, lowered.out_tree, compiled._no_kwargs
    )


def refused(lowered: jax.stages.Lowered, error: BaseException) -> RefusedProgram | None:
    """Returns a program that the compiler of a target has refused for lack of memory.

    Args:
        lowered: the program.
        error: of its compilation.

    Returns:
        What stands in for its executable; None for any other error.
    """
    devices: Any = lowered._lowering._device_list  # type: ignore[attr-defined]
    if not is_out_of_memory(error) or not is_described(next(iter(devices))):
        return None
    found = _NEEDED.search(str(error))
    if found is None:
        return None
    number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
    return RefusedProgram(lowered, int(float(number) * _UNITS[unit]))
