"""Data parallelism: the steps of replicas, and the sums that bring their results together."""
