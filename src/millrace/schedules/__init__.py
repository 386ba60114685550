"""Orders of tasks for pipelines of stages: data, without devices and without times."""
