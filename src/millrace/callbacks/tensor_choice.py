"""Which tensors of a model somebody wants to see, found by patterns of their names.

"dense*"        dense, dense_1, encoder/dense
"encoder/*"     all inside of the layer `encoder`
"*/kernel"      of gradients: every kernel
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from millrace._compat.keras_graph import layer_paths
from millrace.errors import ModelError, OptionError
from millrace.options import Moment, TapRequest, member, whole_number
from millrace.records.tensors import Tensor
from millrace.taps.tensors import gradient_name, matches

# Of an activation: which call of its layer it is, and which of several outputs.
_NUMBERS = re.compile(r"(#\d+)?(:\d+)?$")
_SHOWN = 8  # names in a message


@dataclass(frozen=True, slots=True)
class TensorChoice:
    """Patterns, and when the tensors that they name are looked at."""

    activations: tuple[str, ...]
    gradients: tuple[str, ...]
    moment: Moment
    every: int
    bins: int = 0  # of histograms

    @property
    def taps(self) -> TapRequest:
        """What programs have to carry out for it."""
        after = self.moment is Moment.AFTER_COMPUTE
        return TapRequest(
            activations=self.activations,
            micro_gradients=self.gradients if after else (),
            gradients=() if after else self.gradients,
            every=self.every,
            bins=self.bins,
        )

    def has(self, tensor: Tensor, of_updates: bool) -> bool:
        """Whether a tensor is among them; others may watch the same model for other ones."""
        if tensor.kind == "activation":
            return matches(_NUMBERS.sub("", tensor.name), self.activations)
        in_time = of_updates is (self.moment is Moment.BEFORE_APPLY)
        return in_time and matches(tensor.name, self.gradients)

    def unseen(self, tensors: Iterable[Tensor]) -> list[str]:
        """Returns the patterns that none of these tensors has."""
        kinds: dict[str, list[str]] = {"activation": [], "gradient": []}
        for tensor in tensors:
            kinds[tensor.kind].append(_NUMBERS.sub("", tensor.name))
        missing = []
        for patterns, names in zip((self.activations, self.gradients), kinds.values(), strict=True):
            missing += [p for p in patterns if not any(matches(name, [p]) for name in names)]
        return missing


def choose(activations: Any, gradients: Any, when: Any, every: Any, bins: int = 0) -> TensorChoice:
    """Returns the choice that these options describe.

    Raises:
        OptionError: if one of them is no such thing, or if nothing is chosen.
    """
    choice = TensorChoice(
        patterns_of("activations", activations),
        patterns_of("gradients", gradients),
        member(Moment, "when", when),
        whole_number("every", every, 1),
        bins,
    )
    if not choice.taps:
        raise OptionError(
            "TensorStatistics() looks at no tensor: activations=() and gradients=(). Set "
            "activations='*' for what every layer returns, gradients='*' for every variable, or "
            "patterns of names, such as gradients=['encoder/*']."
        )
    return choice


def check_choice(model: keras.Model, choice: TensorChoice) -> None:
    """Refuses what no program of `model` could carry out.

    Raises:
        ModelError: if the model has a `train_step` of its own.
        OptionError: if a pattern is that of no layer or no trainable variable.
    """
    if type(model).train_step is not keras.Model.train_step:  # type: ignore[attr-defined]
        raise ModelError(
            f"{type(model).__name__} {model.name!r} overrides train_step(), and TensorStatistics "
            "looks into Keras's own: what another one computes in between is out of reach. "
            "Override compute_loss() instead, or train without the callback."
        )
    if choice.activations:
        paths = [path for path in layer_paths(model) if not isinstance(path[-1], keras.Model)]
        names = ["/".join(layer.name for layer in path) for path in paths]
        _check_known(model, "activations", choice.activations, names, "layer")
    check_gradients(model, choice.gradients)


def check_gradients(model: keras.Model, patterns: Sequence[str]) -> None:
    """Refuses a pattern that is that of no trainable variable of `model`.

    Raises:
        OptionError: with the names near it.
    """
    variables = [gradient_name(model, variable) for variable in model.trainable_variables]
    _check_known(model, "gradients", patterns, variables, "trainable variable")


def patterns_of(option: str, value: Any) -> tuple[str, ...]:
    """Returns one pattern or several as a tuple.

    Raises:
        OptionError: if they are no texts.
    """
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, Iterable) or any(not isinstance(p, str) for p in list(patterns)):
        raise OptionError(
            f"{option} must be a pattern of names, such as 'dense*', or several. Received: "
            f"{value!r}."
        )
    return tuple(patterns)


def _check_known(
    model: keras.Model, option: str, patterns: Sequence[str], names: Sequence[str], what: str
) -> None:
    for pattern in patterns:
        if any(matches(name, [pattern]) for name in names):
            continue
        ends = [(end, name) for name in names for end in (name, name.rpartition("/")[2])]
        close = difflib.get_close_matches(pattern, [end for end, _ in ends], _SHOWN, cutoff=0.4)
        near = list(dict.fromkeys(name for end in close for e, name in ends if e == end))
        hint = "Near it are" if near else "There are"
        shown = (near or list(dict.fromkeys(names)))[:_SHOWN]
        raise OptionError(
            f"{option}={pattern!r} is the name of no {what} of {model.name!r}. {hint}: "
            f"{', '.join(shown) or 'none'}. A pattern is as in a shell ('dense*'), and matches a "
            "whole name or its end."
        )
