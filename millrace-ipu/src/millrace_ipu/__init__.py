"""IPU programs for TensorFlow, on Keras 3 and JAX: `import millrace` and the names they know.

cli/         the commands `millrace port`, `millrace run` and `millrace poprun`
porting/     runs IPU programs as they are, and reports what will not carry over
ipu/         `tensorflow.python.ipu`
tensorflow/  the part of TensorFlow that IPU programs use
optimizers/  optimizers that accumulate, and that add up gradients of replicas
_compat/     private names of Keras that only these need
"""

from millrace import __version__ as __version__  # both are released together
from millrace.extend import add_own_package as _add_own_package

_add_own_package(__name__, __file__)


def __dir__() -> list[str]:
    """Lists the names for users, without the packages that they are made of."""
    return [name for name in globals() if name not in ("cli", "porting", "pytrees")]
