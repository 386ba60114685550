"""Connects JAX by itself, whose handler of SIGTERM is one of C++, and sets handlers of Python."""

import os
import signal
import socket
import time

import jax

received = []
signal.signal(signal.SIGTERM, lambda *_: received.append("before"))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
assert signal.getsignal(signal.SIGTERM).__name__ == "<lambda>"  # Python does not know of it
os.kill(os.getpid(), signal.SIGTERM)
assert received == [], received
# A handler of Python that comes later replaces it, and is not replaced by JAX's later steps.
before = signal.signal(signal.SIGTERM, lambda *_: received.append("after"))
jax.devices()
os.kill(os.getpid(), signal.SIGTERM)
assert received == ["after"], received
# What signal.signal() returned puts back Python's handler from before, not JAX's.
signal.signal(signal.SIGTERM, before)
os.kill(os.getpid(), signal.SIGTERM)
assert received == ["after", "before"], received
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(1000)
