"""`ipu.data.ops`: operations on data sets."""
