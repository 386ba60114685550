"""What is compiled while a test runs."""

import pytest

from millrace.compilation.executables import executable


@pytest.fixture
def compiled_texts(monkeypatch):
    """Fills with the text of every program that is compiled, as JAX has lowered it."""
    texts = []
    make = executable.share_or_compile

    def spy(lowering, log):
        texts.append(lowering.lowered.as_text())
        return make(lowering, log)

    monkeypatch.setattr(executable, "share_or_compile", spy)
    return texts
