"""What is compiled while a test runs."""

import pytest

from millrace.compiling import executable


@pytest.fixture
def compiled_texts(monkeypatch):
    """Fills with the text of every program that is compiled, as JAX has lowered it."""
    texts = []
    make = executable.make

    def spy(lowering, log):
        texts.append(lowering.lowered.as_text())
        return make(lowering, log)

    monkeypatch.setattr(executable, "make", spy)
    return texts
