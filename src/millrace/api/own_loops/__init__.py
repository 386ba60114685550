"""Custom training loops: a body in plain Keras, compiled as one program."""
