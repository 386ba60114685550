"""One step and one update of a Keras model as pure JAX functions."""
