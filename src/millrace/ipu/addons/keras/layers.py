"""`ipu_tensorflow_addons.keras.layers`: each name is that of `millrace.ipu.keras.layers`."""

from millrace.ipu.keras.layers import GRU as GRU
from millrace.ipu.keras.layers import LSTM as LSTM
from millrace.ipu.keras.layers import AssumeEqualAcrossReplicas as AssumeEqualAcrossReplicas
from millrace.ipu.keras.layers import Dropout as Dropout
from millrace.ipu.keras.layers import Embedding as Embedding
from millrace.ipu.keras.layers import GroupNorm as GroupNorm
from millrace.ipu.keras.layers import GroupNormalization as GroupNormalization
from millrace.ipu.keras.layers import InstanceNorm as InstanceNorm
from millrace.ipu.keras.layers import InstanceNormalization as InstanceNormalization
from millrace.ipu.keras.layers import LayerNorm as LayerNorm
from millrace.ipu.keras.layers import LayerNormalization as LayerNormalization
from millrace.ipu.keras.layers import PopnnGRU as PopnnGRU
from millrace.ipu.keras.layers import PopnnLSTM as PopnnLSTM
from millrace.ipu.keras.layers import RecomputationCheckpoint as RecomputationCheckpoint
from millrace.ipu.keras.layers import SerialDense as SerialDense
