"""What is compiled while a test runs."""

import jax
import pytest


@pytest.fixture
def compiled_texts(monkeypatch):
    """Fills with the text of every program that is compiled, as JAX has lowered it."""
    texts = []
    compile_lowered = jax.stages.Lowered.compile

    def spy(lowered, *arguments, **keywords):
        texts.append(lowered.as_text())
        return compile_lowered(lowered, *arguments, **keywords)

    monkeypatch.setattr(jax.stages.Lowered, "compile", spy)
    return texts
