"""Runs executables: compiled loops, pipelines, processes, and Keras's fit."""
