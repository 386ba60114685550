"""Private names of Keras and JAX, one file for each purpose; nothing else in millrace uses any."""
