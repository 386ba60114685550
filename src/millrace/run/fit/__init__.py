"""The functions, iterators and checks behind fit, evaluate and predict of attached models."""
