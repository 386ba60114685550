"""`ipu_tensorflow_addons.keras`.

layers   -> millrace.ipu.keras.layers
"""

from millrace.ipu.addons.keras import layers as layers
