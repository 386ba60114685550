"""Keras callbacks that look into compiled loops."""
