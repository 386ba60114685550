"""Private names of Keras and JAX, one file per library; nothing else in millrace uses any."""
