"""Runs the tasks of a schedule: buffers, state and transfers of stages."""
