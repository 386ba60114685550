"""What differs between two programs, for the user who asks why one is not the other."""

from typing import Any

import jax

from millrace.arguments import checked
from millrace.errors import OptionError
from millrace.explain.text_difference import difference


@checked
def diff_programs(a: Any, b: Any, limit: int = 5) -> tuple[str, ...]:
    """Returns what differs between two programs before XLA compiles them, the largest part first.

        diff_programs(f.lower(x), g.lower(x))  ->  ("constant tensor<f32> 10 -> 0.3",)

    Constants are named with both values, long ones by a hash of each, so that weights which were
    frozen into a program show, too. Equal programs give an empty tuple.

    Args:
        a: what `lower(...)` returns, of `millrace.compile` or `jax.jit`, or its `as_text()`.
        b: the same.
        limit: of texts; one more says how many are left.

    Raises:
        OptionError: if one of them is neither.
    """
    return difference(_text("a", a), _text("b", b), limit)


def _text(name: str, program: Any) -> str:
    text = program if isinstance(program, str) else ""
    if isinstance(program, jax.stages.Lowered):
        text = program.as_text()
    if "module" not in text:
        raise OptionError(
            f"diff_programs() compares lowered programs. Received: {name}={program!r:.80}. Set "
            f"{name}=fn.lower(*args), or the text of it: fn.lower(*args).as_text()."
        )
    return text
