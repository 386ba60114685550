"""What to do where an option of `IPUConfig` does nothing. It is kept, and this is said once.

XLA         the compiler's own business
FEEDS       how data reaches the device         -> set_infeed_queue_options
NUMBERS     stopping at infinities and NaN      -> jax_debug_nans, NaNWatch
"""

XLA = "XLA decides this itself. Remove the line; XLA_FLAGS has options of XLA."
FEEDS = "Set model.set_infeed_queue_options() for how data reaches the device."
NUMBERS = "Set jax.config.update('jax_debug_nans', True), or give fit the callback NaNWatch."
