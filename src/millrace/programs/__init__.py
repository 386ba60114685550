"""What is computed, as pure functions: steps, replicas, recomputation, taps, feeds."""
