"""Every test here compiles for a GPU and for a TPU that are described, as `make test-targets` does.

The compilers are packages of their own, which other environments do not have.
"""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Marks all tests of this folder, so that no other command runs one.

    They have the compilers as they are shipped: the options of the quick one are for CPUs.
    """
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.targets)
            item.add_marker(pytest.mark.shipped_compiler)


@pytest.fixture(params=["h100", "v5e"])
def kind(request):
    """A kind of GPU and a kind of TPU."""
    return request.param
