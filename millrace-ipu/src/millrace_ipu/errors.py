"""The error of names of IPU programs that are not here."""

from millrace.errors import UnsupportedError


class UnsupportedNameError(UnsupportedError, AttributeError):
    """An IPU program uses a name that is not here. The message says what to write in its place.

    Wrong: `ipu.embedding_ops.HostEmbedding(...)`

    Right: `keras.layers.Embedding(...)`
    """
