"""`ipu_tensorflow_addons`: what it has of `millrace.ipu`.

ipu_tensorflow_addons.keras.layers   -> millrace.ipu.keras.layers
"""

from millrace.ipu.addons import keras as keras
