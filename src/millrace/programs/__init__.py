"""Pure JAX functions of a Keras model, to be compiled. No device, no clock, no global."""
