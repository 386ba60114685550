"""The choice of tensors to look at, by patterns of their names.

"dense*"        dense, dense_1, encoder/dense
"encoder/*"     everything in the layer `encoder`
"*/kernel"      among gradients: those of all kernels
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import keras

from millrace._compat.keras_graph import layer_paths
from millrace.base.options import Moment, TapRequest, member, whole_number
from millrace.base.records.tensors import Tensor
from millrace.errors import OptionError
from millrace.programs.taps.tensors import gradient_names, matches

# In the name of an activation: the number of the layer's call, and the number of the output.
_NUMBERS = re.compile(r"(#\d+)?(:\d+)?$")
_SHOWN = 8  # names in a message


@dataclass(frozen=True, slots=True)
class TensorChoice:
    """Patterns of names, and the moment at which the tensors are looked at."""

    activations: tuple[str, ...]
    gradients: tuple[str, ...]
    moment: Moment
    every: int
    bins: int = 0  # of histograms

    @property
    def taps(self) -> TapRequest:
        """The request for values that programs must carry out."""
        after = self.moment is Moment.AFTER_COMPUTE
        return TapRequest(
            activations=self.activations,
            micro_gradients=self.gradients if after else (),
            gradients=() if after else self.gradients,
            every=self.every,
            bins=self.bins,
        )

    def has(self, tensor: Tensor, of_updates: bool) -> bool:
        """Whether the choice includes a tensor; other callbacks may watch other ones."""
        if tensor.kind == "activation":
            return matches(_NUMBERS.sub("", tensor.name), self.activations)
        in_time = of_updates is (self.moment is Moment.BEFORE_APPLY)
        return in_time and matches(tensor.name, self.gradients)

    def unseen(self, tensors: Iterable[Tensor]) -> list[str]:
        """Returns the patterns that match none of these tensors."""
        kinds: dict[str, list[str]] = {"activation": [], "gradient": []}
        for tensor in tensors:
            kinds[tensor.kind].append(_NUMBERS.sub("", tensor.name))
        missing = []
        for patterns, names in zip((self.activations, self.gradients), kinds.values(), strict=True):
            missing += [p for p in patterns if not any(matches(name, [p]) for name in names)]
        return missing


def choose(
    activations: str | Iterable[str],
    gradients: str | Iterable[str],
    when: str | Moment,
    every: int,
    bins: int = 0,
) -> TensorChoice:
    """Returns the choice that these options describe.

    Raises:
        OptionError: if one of them is invalid, or if they choose nothing.
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
            "activations='*' for the outputs of all layers, gradients='*' for all variables, or "
            "patterns of names, such as gradients=['encoder/*']."
        )
    return choice


def check_choice(model: keras.Model, choice: TensorChoice) -> None:
    """Refuses a choice of tensors that the programs of `model` do not compute.

    Raises:
        OptionError: if a pattern matches no layer, or no trainable variable.
    """
    if choice.activations:
        paths = [path for path in layer_paths(model) if not isinstance(path[-1], keras.Model)]
        names = ["/".join(layer.name for layer in path) for path in paths]
        _check_matches(model, "activations", choice.activations, names, "layer")
    check_gradients(model, choice.gradients)


def check_gradients(model: keras.Model, patterns: Sequence[str]) -> None:
    """Refuses a pattern that matches no trainable variable of `model`.

    Raises:
        OptionError: with the names that are most similar to the pattern.
    """
    names = [name for name in gradient_names(model) if name is not None]
    _check_matches(model, "gradients", patterns, names, "trainable variable")


def patterns_of(option: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """Returns one pattern, or several, as a tuple.

    Raises:
        OptionError: if a pattern is not a string.
    """
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, Iterable) or any(not isinstance(p, str) for p in list(patterns)):
        raise OptionError(
            f"{option} must be a pattern of names, such as 'dense*', or several. Received: "
            f"{value!r}."
        )
    return tuple(patterns)


def _check_matches(
    model: keras.Model, option: str, patterns: Sequence[str], names: Sequence[str], kind: str
) -> None:
    for pattern in patterns:
        if any(matches(name, [pattern]) for name in names):
            continue
        ends = [(end, name) for name in names for end in (name, name.rpartition("/")[2])]
        close = difflib.get_close_matches(pattern, [end for end, _ in ends], _SHOWN, cutoff=0.4)
        near = list(dict.fromkeys(name for end in close for e, name in ends if e == end))
        hint = "Similar names are" if near else "The names are"
        shown = (near or list(dict.fromkeys(names)))[:_SHOWN]
        raise OptionError(
            f"{option}={pattern!r} matches no {kind} of {model.name!r}. {hint}: "
            f"{', '.join(shown) or 'none'}. Patterns are those of a shell ('dense*'), and match "
            "the whole name or its end."
        )
