"""Private names of Keras that only IPU programs need, and modules under other names."""
