"""What an export depends on besides the keys of its programs."""

import functools
import hashlib
import pathlib
from collections.abc import Mapping

import jax

from millrace.cache.files import environment as of_cache
from millrace.explain.surroundings import versions


def environment(device: jax.Device) -> dict[str, str]:
    """Returns what must be equal where executables are made and where they are used, by name.

    Args:
        device: one of those that they are for.
    """
    return {
        **versions(),
        "code of millrace": _code(),
        "processor": of_cache(),
        "platform": device.platform,
        "version of the platform": str(device.client.platform_version),
        "kind of device": device.device_kind,
    }


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Returns what differs between two environments, such as "jax 0.10.2 -> 0.12.0"."""
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    return [f"{name} {there.get(name)} -> {here.get(name)}" for name in names]


@functools.cache
def _code() -> str:
    """Returns a hash of millrace's own code, which a version does not tell while it is developed.

    250 files take 15 ms.
    """
    root = pathlib.Path(__file__).parent.parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:12]
