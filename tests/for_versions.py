"""Tests that only some versions of Keras or JAX pass, each with what differs.

@needs_keras("<3.16", reason="draws the order of rows from NumPy's generator")
"""

import jax
import keras
import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version


def _needs(name, installed, wanted, reason):
    release = Version(installed).base_version  # 3.16.0.dev2026102704 counts as 3.16.0
    is_right = SpecifierSet(wanted).contains(release)
    return pytest.mark.skipif(not is_right, reason=f"{name} {wanted} {reason}")


def needs_keras(wanted, *, reason):
    """Skips a test on other versions of Keras; `reason` continues after the versions wanted."""
    return _needs("keras", keras.__version__, wanted, reason)


def needs_jax(wanted, *, reason):
    """Skips a test on other versions of JAX; `reason` continues after the versions wanted."""
    return _needs("jax", jax.__version__, wanted, reason)
