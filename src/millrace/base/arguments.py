"""Unknown arguments of a call, refused with the name that was probably meant.

    gradient_accumulation_steps_per_replicas    -> a misspelling
    steps, micro_batches, accumulation          -> other words for it
    prefetch                                    -> a part of prefetch_depth
    zzz                                         -> the list of all names

A wrong guess costs more than none: nothing is suggested for a name unlike all others.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from millrace.errors import OptionError

CallArguments = ParamSpec("CallArguments")
Result = TypeVar("Result")

_CUTOFF = 0.75  # of `difflib`: below, names have little but an ending in common
# Names of the same option in other libraries. Of several options of a call, the first is suggested.
_OTHER_WORDS: Mapping[str, str] = {
    "gradient_accumulation_steps_per_replica": (
        "steps micro_batches microbatches num_micro_batches num_microbatches micro_batch "
        "accumulation accumulate accumulate_steps steps_per_update count chunks num_chunks "
        "mini_batches accumulate_grad_batches steps_per_replica ga ga_steps"
    ),
    "micro_batches": (
        "steps microbatches num_micro_batches num_microbatches accumulation chunks count "
        "gradient_accumulation_steps_per_replica gradient_accumulation_count"
    ),
    "gradient_accumulation_reduction_method": "reduction reduce loss_reduction normalize",
    "replicated_metric_reduction_method": "metrics metric reduction reduce",
    "replicated_optimizer_state_sharding": "zero1 shard_optimizer shard_optimizer_state",
    "replicated_weight_sharding": "zero3 fsdp shard shard_weights",
    "offload_weight_update_variables": "offload offload_optimizer offload_optimizer_state",
    "device_mapping": "devices device mapping placement stage_devices",
    "devices": "device num_devices n_devices device_count gpu gpus cpu cpus replicas num_replicas",
    "cache_dir": "cache cache_directory compile_cache",
    "report_dir": "report reports log_dir logdir directory",
    "on_recompile": "recompile recompilation recompiles",
    "budget": "memory memory_limit memory_budget max_memory limit bytes max_bytes peak share",
    "prefetch_depth": "prefetch depth buffer buffer_size queue_size",
    "max_block_bytes": "block block_size",
    "max_resident_bytes": "resident cache keep_on_device",
    "max_wait_seconds": "timeout time_out max_wait wait seconds",
    "max_bytes": "size max_size maxsize capacity limit buffer_size",
    "stop_within": "stop_after stop",
    "asynchronous": "async_ is_async enabled",
    "activations": "layers outputs tensors layer",
    "gradients": "layers layer variables variable weights patterns names tensors",
    "every": "frequency freq interval",
    "print_every": "verbose",
    "tensorboard": "log_dir logdir",
    "directory": "path dir log_dir logdir folder",
    "last": "history window keep",
    "dataset": "data x iterator generator source",
    "n": "steps times turns count iterations num_steps length",
    "body": "fn function f step body_fun",
    "condition": "cond cond_fn cond_fun predicate",
    "maximum_iterations": "max_iterations max_steps limit",
    "inputs": "args init init_val initial carry state operands loop_vars",
    "fn": "function func f body",
    "stages": "functions layers",
}  # fmt: skip


def names_meant(name: str, names: Iterable[str]) -> list[str]:
    """Returns those of `names` that the writer of `name` may have meant."""
    names = list(names)
    if len(name) > 2 and (begun := [each for each in names if each.startswith(name)]):
        return begun[:3]
    near = difflib.get_close_matches(name, names, n=1, cutoff=_CUTOFF)
    if near:
        return near
    words = {option: _OTHER_WORDS.get(option, "").split() for option in names}
    for option in _OTHER_WORDS:
        if name.lower() in words.get(option, ()):
            return [option]
    parts = {_singular(word) for word in name.lower().split("_") if word}
    return [each for each in names if parts <= {_singular(word) for word in each.split("_")}][:3]


def _singular(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 else word


def refuse_unknown(
    setter: str, unknown: Iterable[str], options: Iterable[str], reasons: Mapping[str, str]
) -> None:
    """Raises for the first unknown option of `setter`, with a reason or the name that was meant.

    Raises:
        OptionError: if `unknown` has a name.
    """
    options = list(options)
    for name in unknown:
        if name in reasons:
            raise OptionError(f"{setter}() does not take {name}: {reasons[name]}")
        meant = names_meant(name, options)
        hint = f"Did you mean {' or '.join(meant)}? " if meant else ""
        has = f"It has: {', '.join(options)}." if options else "It has none."
        raise OptionError(f"{setter}() has no option {name!r}. {hint}{has}")


def checked(function: Callable[CallArguments, Result]) -> Callable[CallArguments, Result]:
    """Makes a function or an `__init__` refuse a misspelled argument with the name that was meant.

    Raises:
        OptionError: for an unknown argument, or too many positional ones.
    """
    signature = inspect.signature(function)
    is_class = function.__name__ == "__init__"
    owner, _, name = function.__qualname__.rpartition(".")
    shown = owner.rpartition(".")[2] if is_class else name
    takes_self = is_class or (bool(owner) and not owner.endswith("<locals>"))

    @functools.wraps(function)
    def call(*args: CallArguments.args, **kwargs: CallArguments.kwargs) -> Result:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            check_call(shown, signature, args, kwargs, takes_self)
        return function(*args, **kwargs)  # raises Python's own error for a missing argument

    return call


def check_call(
    shown: str,
    signature: inspect.Signature,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    takes_self: bool = False,
) -> None:
    """Raises for an argument that a call does not take.

    Args:
        shown: name of the function.
        signature: of the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        takes_self: whether the first positional argument is not the user's.

    Raises:
        OptionError: with the name that was meant, or the one to give the value by.
    """
    parameters = list(signature.parameters.values())[takes_self:]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if all(p.kind is not p.VAR_KEYWORD for p in parameters):
        refuse_unknown(shown, (name for name in kwargs if name not in named), named, {})
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    of_user = args[takes_self:]
    if len(of_user) > len(by_position):
        value = of_user[len(by_position)]
        others = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        advice = f"Give it by its name, such as {others[0]}=." if others else "Leave it out."
        count = f"{len(by_position) or 'no'} argument{'' if len(by_position) == 1 else 's'}"
        raise OptionError(
            f"{shown}() takes {count} by position. Received one more: {_short(value)}. {advice}"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
