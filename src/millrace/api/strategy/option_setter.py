"""A setter of options, made from the table of options.

    @setter(reasons={...})                      options that users of other libraries look for
    def set_replication_options(controller, options, arguments): ...

    model.set_replication_options(replicated_weight_sharding=True)
      an unknown name          OptionError, with the nearest one
      each value               checked, and put into a copy of the model's options
      the function above       checks that concern several options; returns what comes in force

The table gives the arguments, their types and `Args` of the docstring. An argument left out, or
None, keeps the value in force.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence

from millrace.base.arguments import refuse_unknown
from millrace.base.options import MIB, Entry, Options, arguments_of, as_plain, replaced
from millrace.run.fit.controller import Controller

OptionArguments = Mapping[str, object]  # arguments that are not None, by name
Finish = Callable[[Controller, Options, OptionArguments], Options]
Setter = Callable[..., None]


def setter(
    *,
    reasons: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    by_position: Sequence[str] = (),
    keeps_functions: bool = False,
) -> Callable[[Finish], Setter]:
    """Makes the setter of all options that have the function's name in the table.

    Args:
        reasons: names that are refused, each with what to set instead.
        defaults: of arguments whose default is not None.
        by_position: arguments that may be given by position.
        keeps_functions: whether compiled functions serve the new options, too.
    """

    def decorate(finish: Finish) -> Setter:
        name = finish.__name__
        entries = arguments_of(name)
        signature = _signature(entries, defaults or {}, by_position)

        @functools.wraps(finish)
        def set_options(controller: Controller, *args: object, **kwargs: object) -> None:
            unknown = (argument for argument in kwargs if argument not in entries)
            refuse_unknown(name, unknown, entries, reasons or {})
            bound = signature.bind(controller, *args, **kwargs)
            bound.apply_defaults()
            arguments = {n: value for n in entries if (value := bound.arguments[n]) is not None}
            options = replaced(controller.setup.options, name, arguments)
            controller.put_options(finish(controller, options, arguments), keeps_functions)

        set_options.__signature__ = signature  # type: ignore[attr-defined]
        set_options.__doc__ = _docstring(inspect.getdoc(finish) or "", entries, defaults or {})
        return set_options

    return decorate


def _signature(
    entries: Mapping[str, Entry], defaults: Mapping[str, str], by_position: Sequence[str]
) -> inspect.Signature:
    kinds = inspect.Parameter
    options = [
        kinds(
            name,
            kinds.POSITIONAL_OR_KEYWORD if name in by_position else kinds.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=entry.accepts,
        )
        for name, entry in entries.items()
    ]
    controller = kinds("controller", kinds.POSITIONAL_ONLY, annotation=Controller)
    unknown = kinds("unknown", kinds.VAR_KEYWORD, annotation=object)
    return inspect.Signature([controller, *options, unknown], return_annotation=None)


def _docstring(text: str, entries: Mapping[str, Entry], defaults: Mapping[str, str]) -> str:
    """Returns a docstring with the arguments between its text and `Raises`."""
    lines = ["Args:"]
    for name, entry in entries.items():
        default = f"Default: {default_text(entry)}."
        if name in defaults:
            default = (
                f"A model has {default_text(entry)} until this is called; left out here, it is "
                f'`"{defaults[name]}"`.'
            )
        line = f"{name}: {entry.option.doc} {default}"
        lines += textwrap.wrap(
            line, 96, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
        )
    which = "Another" if defaults else "An"
    rule = f"{which} argument left out, or None, keeps the value in force."
    arguments = "\n".join([*lines, "", rule])
    before, raises, after = text.partition("Raises:")
    return f"{before}{arguments}\n\n{raises}{after}"


def default_text(entry: Entry) -> str:
    """Returns the default as text: of one that is decided later, how."""
    if entry.default is None:
        return f'`"auto"`: {entry.option.auto}' if entry.option.auto else "none"
    if isinstance(entry.default, int) and entry.default >= MIB:
        return f"{entry.default // MIB} MiB"
    return f"`{as_plain(entry.default)!r}`".replace("'", '"')
