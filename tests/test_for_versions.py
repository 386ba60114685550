import keras
import pytest

from for_versions import needs_jax, needs_keras


@pytest.mark.parametrize(
    ("installed", "wanted", "skips"),
    [
        ("3.15.1", "<3.16", False),
        ("3.16.0.dev2026102704", "<3.16", True),
        ("3.16.0.dev2026102704", ">=3.16", False),
        ("3.13.0", ">=3.14,<3.16", True),
    ],
)
def test_tests_are_skipped_by_version(monkeypatch, installed, wanted, skips):
    monkeypatch.setattr(keras, "__version__", installed)
    mark = needs_keras(wanted, reason="is new").mark
    assert mark.args == (skips,)
    assert mark.kwargs == {"reason": f"keras {wanted} is new"}


def test_the_installed_jax_fits():
    assert needs_jax(">=0.10", reason="is needed").mark.args == (False,)
