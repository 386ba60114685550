"""Schedules of pipelines: orders of tasks as data, without devices and times."""
