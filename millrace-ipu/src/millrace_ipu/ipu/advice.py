"""What to write for names of the IPU's packages that have no replacement of the same form."""

_SUM_PER_GROUP = "keras.ops.segment_sum(x, ids, num_segments)"
_ON_HOST = "jax.experimental.multihost_utils.process_allgather, and NumPy"
_ROWS = "jax.lax.dynamic_slice, or keras.ops.take"

ADVICE = {
    "ipu.addons.keras.layers": "the layer of keras.layers",
    "ipu.addons.keras.optimizers": "keras.optimizers.Adam, SGD or Lamb",
    "ipu.all_to_all_op": "ipu.cross_replica_ops.cross_replica_sum",
    "ipu.distributed.allgather": _ON_HOST,
    "ipu.distributed.allreduce": _ON_HOST,
    "ipu.distributed.all_reduce": _ON_HOST,
    "ipu.distributed.broadcast": _ON_HOST,
    "ipu.distributed.host_collective_ops": _ON_HOST,
    "ipu.driver": "strategy.statistics(), or `millrace report`",
    "ipu.gen_ipu_ops": "the function of tensorflow.python.ipu that calls it",
    "ipu.gen_ipu_ops.ipu_event_trace": "POPLAR_ENGINE_OPTIONS, and `millrace report`",
    "ipu.image_ops.normalise_image": "(image * scale - offsets) / deviations, in the data set",
    "ipu.keras.layers.CTCInferenceLayer": "keras.ops.ctc_decode",
    "ipu.keras.layers.CTCPredictionsLayer": "keras.ops.ctc_decode",
    "ipu.keras.layers.CaptureActivationGradients": "the layer that it wraps",
    "ipu.keras.layers.EffectiveTransformer": "keras.layers.MultiHeadAttention",
    "ipu.keras.losses": "keras.losses.CTC()",
    "ipu.keras.optimizers.LAMBIpuOptimizer": "keras.optimizers.Lamb",
    "ipu.math_ops": _SUM_PER_GROUP,
    "ipu.nn_ops.ctc_": "keras.ops.ctc_loss",
    "ipu.reduce_scatter_op": "ipu.cross_replica_ops.cross_replica_sum",
    "ipu.slicing_ops": _ROWS,
    "ipu.statistics_ops": "jax.numpy.histogram",
    "ipu.utils.set_experimental_": "config.experimental.multi_replica_distribution",
    "ipu.within_replica_ops": "remove it: one replica of a stage has one device group",
}
