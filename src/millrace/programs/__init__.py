"""JAX functions of a Keras model, to be compiled: specs and a plan in, functions out.

Nothing here calls a device. What a trace finds on its way (taps, chains of segments, the replica
that is traced, the loop around a function) stands in thread-locals and context variables for as
long as that trace lasts; `trace_seconds` of a builder is read off a clock.
"""
