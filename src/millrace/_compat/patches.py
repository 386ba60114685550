"""The changes that millrace makes in Keras, JAX and Python while it is in use, and their removal.

    Patch(...)                   one place: where it is, why it is changed, and for how long
    replace(patch, wrapper)      puts a function in place of the one that is there
    put_in(patch, undo)          records a change that is not to a function
    take_out(patch)              restores what was there
    hold(holder), release(...)   patches for models stay in while anybody holds them

All patches are listed in `patch_table.py`, and in docs/patches.md for users.
"""

import enum
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import keras

from millrace.errors import VersionError

_REPLACED = "millrace_replaced"  # attribute of a replacement: what it replaced; None: nothing


class While(enum.Enum):
    """How long a patch is in; the values are for docs/patches.md."""

    MODELS = "while a model is attached to a strategy, a scope is open, or a program is traced"
    CACHE = "from the first strategy with a cache to `Strategy(cache_dir=None)`"
    LOOPS = "while fit, evaluate, predict or one of their kind runs in the main thread"
    PROCESSES = "from the start of a run of several processes to its end"


@dataclass(frozen=True, slots=True, eq=False)  # there is one of each
class Patch:
    """One place in a library that millrace changes.

    Attributes:
        name: the public name of the changed place.
        why: its purpose, for docs/patches.md.
        during: how long it is in; a text of their own for patches of other packages.
        owner: returns the class or the module in which the changed name is looked up. Called when
            the patch is put in, since a library may move things between its versions.
        attribute: the changed name.
        parameters: names of the leading parameters on which the replacement relies.
    """

    name: str
    why: str
    during: While | str
    owner: Callable[[], Any] | None = None
    attribute: str = ""
    parameters: tuple[str, ...] = ()

    @property
    def period(self) -> str:
        """How long it is in, as text."""
        return self.during.value if isinstance(self.during, While) else self.during


_lock = threading.RLock()  # a finalizer may run within any of these functions
_undo: dict[tuple[Patch, Hashable], Callable[[], None]] = {}
_holders: set[Hashable] = set()
_numbers = itertools.count()


class _Replacements:
    """A name in a module or a class, and the replacements that are in it, the innermost first."""

    def __init__(self, owner: Any, attribute: str, raw: object):
        self.owner, self.attribute, self.raw = owner, attribute, raw
        self.wrappers: dict[tuple[Patch, Hashable], tuple[Callable[[Any], object], object]] = {}
        self.installed: object = self  # of nobody

    def install(self) -> None:
        """Puts the replacements around what was there, one around the other."""
        function: Any = None
        for wrapper, original in self.wrappers.values():
            inner: Any = original if function is None else function
            function = wrapper(inner)
            if inner is not None:
                updated = () if isinstance(inner, type) else functools.WRAPPER_UPDATES
                functools.update_wrapper(function, inner, updated=updated)
            setattr(function, _REPLACED, self.raw)
        self.installed = classmethod(function) if isinstance(self.raw, classmethod) else function
        setattr(self.owner, self.attribute, self.installed)

    def remove(self, name: tuple[Patch, Hashable]) -> None:
        """Takes one replacement out."""
        self.wrappers.pop(name, None)
        if vars(self.owner).get(self.attribute) is not self.installed:
            return  # another library has wrapped it since: ours stays inside, without effect
        if self.wrappers:
            self.install()
        elif self.raw is None:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.raw)


_replacements: dict[tuple[int, str], _Replacements] = {}


def replace(
    patch: Patch,
    wrapper: Callable[[Any], object],
    owner: Any = None,
    attribute: str = "",
) -> None:
    """Puts a replacement in, around those that are there, unless the patch is in already.

    Args:
        patch: the place.
        wrapper: called with the original function, or with the replacement that is in its place;
            returns its own. Called again when another replacement is taken out.
        owner: the class or module, for a patch of several places.
        attribute: the name in it.

    Raises:
        VersionError: if the original is gone, or takes other arguments.
    """
    with _lock:
        key = None if owner is None else (id(owner), attribute)
        if (patch, key) in _undo:
            return
        if owner is None:
            owner = patch.owner() if patch.owner is not None else None
            attribute = patch.attribute
        place = _replacements_of(owner, attribute)
        place.wrappers[patch, key] = wrapper, _original(patch, owner, attribute, place.raw)
        place.install()
        _undo[patch, key] = functools.partial(place.remove, (patch, key))


def _replacements_of(owner: Any, attribute: str) -> _Replacements:
    """Returns the place of a name, with the replacements that are in force."""
    raw = vars(owner).get(attribute)
    place = _replacements.get((id(owner), attribute))
    if place is None or place.installed is not raw or not all(n in _undo for n in place.wrappers):
        raw = getattr(_function(raw), _REPLACED, raw)  # put in by this module before its reload
        place = _replacements[id(owner), attribute] = _Replacements(owner, attribute, raw)
    return place


def _function(raw: object) -> Any:
    return getattr(raw, "__func__", raw)  # of a classmethod


def _original(patch: Patch, owner: type | ModuleType, attribute: str, raw: object) -> Any:
    """Returns the function behind a name, inherited ones included, and checks its parameters."""
    bases = owner.__mro__[1:] if isinstance(owner, type) else ()
    inherited = (vars(base)[attribute] for base in bases if attribute in vars(base))
    original = _function(raw if raw is not None else next(inherited, None))
    if original is None and not patch.parameters:
        return None  # a name that millrace adds
    if original is None:
        raise VersionError(f"{_versions()} has no {patch.name}, which millrace uses.")
    taken = tuple(inspect.signature(original).parameters) if patch.parameters else ()
    if taken[: len(patch.parameters)] != patch.parameters:
        raise VersionError(
            f"{patch.name} takes other arguments in {_versions()} than in the versions with which "
            f"millrace is tested: ({', '.join(taken)}), and not ({', '.join(patch.parameters)}). "
            "Install a version of Keras that millrace is tested with."
        )
    return original


def _versions() -> str:
    return f"keras {keras.__version__} on jax {jax.__version__}"


def unpatched(value: object) -> Any:
    """Returns the original behind a replacement; any other value as it is."""
    return getattr(value, _REPLACED, value)


def put_in(patch: Patch, undo: Callable[[], None], key: Hashable = None) -> None:
    """Records a change that is not to one function.

    Args:
        patch: the place.
        undo: takes the change out.
        key: distinguishes several changes under one patch.
    """
    with _lock:
        _undo[patch, key] = undo


def take_out(patch: Patch, key: Hashable = None) -> None:
    """Undoes all changes under a patch, or that of a key; does nothing if there are none."""
    with _lock:
        undo = _undo.pop((patch, key), None)
        if undo is not None:  # each call of a model takes its handler of Ctrl-C out
            undo()
        elif key is None:
            _undo_each(lambda each, _: each is patch)


def _undo_each(is_meant: Callable[[Patch, Hashable], bool]) -> None:
    """Undoes changes, the last one first."""
    with _lock:
        for entry in [entry for entry in reversed(_undo) if is_meant(*entry)]:
            undo = _undo.pop(entry, None)  # None: the one before has undone this one, too
            if undo is not None:
                undo()


def patches_in() -> set[Patch]:
    """Returns the patches in place."""
    with _lock:
        return {patch for patch, _ in _undo}


def hold(holder: Hashable) -> None:
    """Keeps patches for models in place until `release`, also those that are put in later."""
    with _lock:
        _holders.add(holder)


def release(holder: Hashable) -> None:
    """Ends a `hold`. With the last holder, all patches for models are taken out."""
    with _lock:
        _holders.discard(holder)
        if not _holders:
            _undo_each(lambda patch, _: patch.during is While.MODELS)


def new_holder() -> Hashable:
    """Returns a new holder, different from all others."""
    return next(_numbers)


@contextmanager
def held() -> Iterator[None]:
    """Keeps patches for models in place for the time of a `with` block."""
    holder = new_holder()
    hold(holder)
    try:
        yield
    finally:
        release(holder)
