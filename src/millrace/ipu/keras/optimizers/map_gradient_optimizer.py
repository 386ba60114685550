"""Is `millrace.ipu.keras.optimizers`."""

from millrace.ipu.keras.optimizers import MapGradientOptimizer as MapGradientOptimizer
