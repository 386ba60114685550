"""`tf.compat`: the names of TensorFlow 1, in `v1`."""

from millrace_ipu.tensorflow.compat import v1 as v1
