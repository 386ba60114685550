"""`ipu.data`: data sets."""
