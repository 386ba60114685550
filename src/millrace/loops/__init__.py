"""Training loops of the user's own: a body in plain Keras, compiled as one program."""
