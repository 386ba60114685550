"""The lock that a thread holds while it traces a model's step: one for each model.

JAX and Keras keep the state of a trace by thread, so traces need no lock of the process, and none
is held while a user's function is traced. A model is an object that traces share, though. Keras's
`compute_loss_and_updates` leaves the losses of its layers on the model (`_losses_override`) until
it has added them up, and recomputation of activations exchanges `layer.activation` for the time of
a call. `precompile` traces the training and the validation step of one model in two threads:
without the lock, one would add up losses of the other's trace.
"""

import threading
import weakref

import keras

_table = threading.Lock()  # held for a look-up only
_locks: "weakref.WeakKeyDictionary[keras.Model, threading.RLock]" = weakref.WeakKeyDictionary()


def tracing(model: keras.Model) -> "threading.RLock":
    """Returns the lock to hold while a step of `model` is traced. A trace may contain others."""
    with _table:
        return _locks.setdefault(model, threading.RLock())
