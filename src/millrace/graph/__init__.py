"""The calls of a Keras model, and the pipeline stage of each."""
