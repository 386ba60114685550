"""Data parallelism: what replicas compute apart, and how that becomes one."""
