"""The Keras side: a scope, methods on models, and the functions that Keras's loops call."""
