"""Layers of IPU programs; `ipu_tensorflow_addons.keras.layers` has the same.

RecomputationCheckpoint            -> millrace.layers.RecomputationCheckpoint
PopnnLSTM, LSTM                    -> keras.layers.LSTM                  `recurrent`
PopnnGRU, GRU                      -> keras.layers.GRU, reset_after=False
GroupNormalization, GroupNorm         no stock layer has strided groups  `normalization`
InstanceNormalization, InstanceNorm   a group for each channel
LayerNormalization, LayerNorm      -> keras.layers.LayerNormalization
Dropout                            -> keras.layers.Dropout               `stock`
Embedding                          -> keras.layers.Embedding
SerialDense                        -> keras.layers.Dense
AssumeEqualAcrossReplicas          -> keras.layers.Identity
"""

from typing import Any

from millrace.layers import RecomputationCheckpoint as RecomputationCheckpoint
from millrace_ipu.ipu.keras.layers.normalization import GroupNormalization as GroupNormalization
from millrace_ipu.ipu.keras.layers.normalization import (
    InstanceNormalization as InstanceNormalization,
)
from millrace_ipu.ipu.keras.layers.normalization import LayerNormalization as LayerNormalization
from millrace_ipu.ipu.keras.layers.recurrent import PopnnGRU, PopnnLSTM
from millrace_ipu.ipu.keras.layers.stock import (
    AssumeEqualAcrossReplicas as AssumeEqualAcrossReplicas,
)
from millrace_ipu.ipu.keras.layers.stock import Dropout as Dropout
from millrace_ipu.ipu.keras.layers.stock import Embedding as Embedding
from millrace_ipu.ipu.keras.layers.stock import SerialDense as SerialDense
from millrace_ipu.ipu.replacements import other_name as _other_name

LSTM, GRU = PopnnLSTM, PopnnGRU
GroupNorm, InstanceNorm, LayerNorm = GroupNormalization, InstanceNormalization, LayerNormalization


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
