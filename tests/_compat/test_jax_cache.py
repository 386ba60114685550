import jax
import pytest

from millrace._compat import jax_cache


@pytest.mark.parametrize(
    ("version", "platform", "quiet"),
    [
        ("0.10.0", "cpu", False),
        ("0.10.1", "cpu", False),
        ("0.10.1", "cuda", True),
        ("0.10.2", "cpu", True),
        ("0.12.0.1", "cpu", True),
        ("0.10.2.dev20260101", "cpu", True),
    ],
)
def test_which_versions_load_quietly(monkeypatch, version, platform, quiet):
    monkeypatch.setattr(jax_cache, "jaxlib_version", lambda: version)
    monkeypatch.setattr(jax_cache, "platform", lambda: platform)
    assert jax_cache.loads_quietly() is quiet


def test_the_platform_does_not_start_the_devices(monkeypatch):
    assert jax_cache.platform() == jax.default_backend()
    monkeypatch.setattr(jax_cache, "backends_are_initialized", lambda: False)
    monkeypatch.setattr(jax, "default_backend", None)
    before = jax.config.jax_platforms
    try:
        jax.config.update("jax_platforms", "cuda,cpu")
        assert jax_cache.platform() == "cuda"
        jax.config.update("jax_platforms", None)
        assert jax_cache.platform() == "cpu"
    finally:
        jax.config.update("jax_platforms", before)
