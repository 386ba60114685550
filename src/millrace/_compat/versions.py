"""A check that the installed Keras and JAX have the private names of `names.py`.

check()              run when millrace is imported, before anything else of Keras or JAX
private("remat")     a name that has moved between versions
owners("remat")      the modules in which it has to be replaced
keras_is("3.16")     whether the installed Keras is that version or a later one
"""

import dis
import functools
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
import keras

from millrace._compat.names import NAMES, TESTED, Private
from millrace.errors import VersionError


def installed() -> dict[str, str]:
    """Returns the installed versions, by library."""
    return {"keras": keras.__version__, "jax": jax.__version__}


@functools.cache
def keras_is(version: str) -> bool:
    """Whether the installed Keras is `version`, one before its release, or a later one."""
    return _numbers(keras.__version__) >= _numbers(version)


def check(
    versions: Mapping[str, str] | None = None, names: Mapping[str, Sequence[Private]] = NAMES
) -> None:
    """Looks up all private names that millrace uses, and compares versions.

    Args:
        versions: the versions to check, by library; None is those that are installed.
        names: private names, by library.

    Raises:
        VersionError: if a library is too old, or lacks one of the names.
    """
    for library, version in (versions or installed()).items():
        oldest, newest = TESTED[library]
        if _numbers(version) < _numbers(oldest):
            raise VersionError(
                f"{library} {version} is older than {oldest}, the oldest that millrace runs on. "
                f"{_remedy(library, version)}"
            )
        missing = [each for each in names[library] if _owners(each, version) is None]
        if missing:
            raise VersionError(_missing_text(library, version, missing))
        if _numbers(version)[:2] > _numbers(newest):
            warnings.warn(
                f"millrace is tested with {library} {oldest} to {newest}, and {version} is "
                "installed. It has every private name that millrace uses; other changes are not "
                f"known. For a tested version, run:\n    {_command(library, version)}",
                UserWarning,
                stacklevel=2,
            )


def private(name: str) -> Any:
    """Returns the object behind a private name of the table in the installed version."""
    return getattr(owners(name)[0], name)


def owners(name: str) -> tuple[Any, ...]:
    """Returns the modules or classes in which the installed version looks a private name up.

    Raises:
        VersionError: if it has the name in none of its places.
    """
    for library, version in installed().items():
        for each in NAMES[library]:
            if each.name == name:
                places = _owners(each, version)
                if places is None:
                    raise VersionError(_missing_text(library, version, [each]))
                return places
    raise LookupError(f"{name} is not in millrace._compat.names")


def _owners(each: Private, version: str) -> tuple[Any, ...] | None:
    """Returns the owners of a name; none if this version needs none, None if it is missing."""
    due = [since for since in each.places if _numbers(since) <= _numbers(version)]
    # A version before a release may have a name where the last one had it.
    for since in reversed(due):
        found = [_owner(place) for place in each.places[since]]
        if all(owner is not None and _has(owner, each.name) for owner in found):
            return tuple(found)
    return None


def _owner(place: str) -> Any:
    """Returns the module or the class that `place` names, None if there is none."""
    module, _, path = place.partition(":")
    try:
        owner: Any = importlib.import_module(module)
        for part in filter(None, path.split(".")):
            owner = getattr(owner, part)
    except (ImportError, AttributeError):
        return None
    return owner


def _has(owner: type | ModuleType, name: str) -> bool:
    """Whether a module or a class has a name, or its functions set it on an object."""
    if hasattr(owner, name):
        return True
    kinds = owner.__mro__ if isinstance(owner, type) else (owner,)
    if any(name in getattr(kind, "__annotations__", ()) for kind in kinds):
        return True
    members = [member for kind in kinds for member in vars(kind).values()]
    functions = (function for member in members for function in functions_of(member))
    return any(_stores(function.__code__, name) for function in functions)


def functions_of(member: object) -> Iterator[FunctionType]:
    """Yields the functions of a member of a class or a module, without their decorators."""
    is_property = isinstance(member, property)
    for function in (member.fget, member.fset) if is_property else (member,):
        plain: Any = getattr(function, "__func__", function)
        plain = inspect.unwrap(plain) if callable(plain) else plain
        if isinstance(plain, FunctionType):
            yield plain


def _stores(code: CodeType, name: str) -> bool:
    """Whether a function sets an attribute of this name."""
    if name in code.co_names and any(
        instruction.opname == "STORE_ATTR" and instruction.argval == name
        for instruction in dis.get_instructions(code)
    ):
        return True
    return any(_stores(inner, name) for inner in code.co_consts if isinstance(inner, CodeType))


def _missing_text(library: str, version: str, missing: Sequence[Private]) -> str:
    lines = [f"    {_where(each, version)}    {each.use}" for each in missing]
    oldest, newest = TESTED[library]
    return "\n".join(
        [
            f"{library} {version} lacks names that millrace uses:",
            *lines,
            f"millrace is tested with {library} {oldest} to {newest}. {_remedy(library, version)}",
        ]
    )


def _where(each: Private, version: str) -> str:
    due = [since for since in each.places if _numbers(since) <= _numbers(version)]
    place = each.places[due[-1]]
    owner = next((p for p in place if not _has_name(p, each.name)), place[0])
    return f"{owner.replace(':', '.')}.{each.name}"


def _has_name(place: str, name: str) -> bool:
    owner = _owner(place)
    return owner is not None and _has(owner, name)


def _remedy(library: str, version: str) -> str:
    return f"Install one of those:\n    {_command(library, version)}"


def _command(library: str, version: str) -> str:
    oldest, newest = TESTED[library]
    major, minor = _numbers(newest)
    command = f'python -m pip install "{library}>={oldest},<{major}.{minor + 1}"'
    if (
        library == "keras" and "dev" in version
    ):  # another package, whose files are in the same place
        command = f"python -m pip uninstall -y keras keras-nightly && {command}"
    return command


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: 3.16.0.dev2026102704 is (3, 16, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
