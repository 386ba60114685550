"""Families of models at small sizes, for budgets of memory: stock Keras, one function each.

Each function returns a model and the shapes of its inputs for one batch.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

Shape = tuple[int, ...]
Built = tuple[Any, list[Shape]]  # a keras.Model and the shapes of its inputs


def mlp(depth: int = 16, width: int = 256, rows: int = 1024) -> Built:
    """Dense layers, one after another."""
    hidden = [layers.Dense(width, "tanh") for _ in range(depth)]
    return keras.Sequential([keras.Input((width,)), *hidden, layers.Dense(1)]), [(rows, width)]


def _recurrent(layer: Any, steps: int, rows: int = 32, features: int = 32) -> Built:
    model = keras.Sequential([keras.Input((steps, features)), layer, layers.Dense(1)])
    return model, [(rows, steps, features)]


def lstm() -> Built:
    """One layer over 1024 steps."""
    return _recurrent(layers.LSTM(128, use_cudnn=False), 1024)


def gru() -> Built:
    """One layer over 1024 steps."""
    return _recurrent(layers.GRU(128, use_cudnn=False), 1024)


def bidirectional() -> Built:
    """An LSTM over 512 steps, in both directions."""
    return _recurrent(layers.Bidirectional(layers.LSTM(64, use_cudnn=False)), 512)


def stacked() -> Built:
    """An LSTM, Dropout and a GRU over 256 steps, with an output for each."""
    x = inputs = keras.Input((256, 32))
    x = layers.LSTM(64, use_cudnn=False, return_sequences=True)(layers.Masking()(x))
    x = layers.GRU(64, use_cudnn=False, return_sequences=True)(layers.Dropout(0.1)(x))
    return keras.Model(inputs, layers.Dense(4)(x)), [(32, 256, 32)]


def conv_lstm() -> Built:
    """Two layers over 16 images."""
    options = {"padding": "same"}
    model = keras.Sequential(
        [
            keras.Input((16, 24, 24, 3)),
            layers.ConvLSTM2D(8, 3, return_sequences=True, **options),
            layers.ConvLSTM2D(8, 3, **options),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    return model, [(4, 16, 24, 24, 3)]


def _block(x: Any, filters: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def unet(attention: bool = False, size: int = 64, filters: int = 16, levels: int = 3) -> Built:
    """Skips from each level of the way down to the same level of the way up."""
    x = inputs = keras.Input((size, size, 3))
    skips = []
    for level in range(levels):
        skips.append(_block(x, filters * 2**level))
        x = layers.MaxPooling2D()(skips[-1])
    x = _block(x, filters * 2**levels)
    for level in reversed(range(levels)):
        width = filters * 2**level
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        skip = skips[level]
        if attention:
            gate = layers.Conv2D(width // 2, 1)(skip) + layers.Conv2D(width // 2, 1)(x)
            skip = skip * layers.Conv2D(1, 1, activation="sigmoid")(layers.ReLU()(gate))
        x = _block(layers.Concatenate()([skip, x]), width)
    return keras.Model(inputs, layers.Conv2D(1, 1)(x)), [(8, size, size, 3)]


def attention_unet() -> Built:
    """A U-Net whose skips are gated."""
    return unet(attention=True)


def _transformer_block(x: Any, width: int, heads: int = 4) -> Any:
    hidden = layers.LayerNormalization()(x)
    hidden = layers.MultiHeadAttention(heads, width // heads)(hidden, hidden)
    x = x + layers.Dropout(0.1)(hidden)
    hidden = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dropout(0.1)(layers.Dense(width)(hidden))


class Transformer(keras.Model):
    """A subclassed model of blocks of attention and dense layers."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.normalizations = [layers.LayerNormalization() for _ in range(2 * blocks)]
        self.attentions = [layers.MultiHeadAttention(4, width // 4) for _ in range(blocks)]
        self.wide = [layers.Dense(4 * width, "gelu") for _ in range(blocks)]
        self.narrow = [layers.Dense(width) for _ in range(blocks)]
        self.dropouts = [layers.Dropout(0.1) for _ in range(2 * blocks)]
        self.head = layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        """Runs the blocks."""
        for k, attention in enumerate(self.attentions):
            hidden = self.normalizations[2 * k](x)
            hidden = attention(hidden, hidden, training=training)
            x = x + self.dropouts[2 * k](hidden, training=training)
            hidden = self.narrow[k](self.wide[k](self.normalizations[2 * k + 1](x)))
            x = x + self.dropouts[2 * k + 1](hidden, training=training)
        return self.head(ops.mean(x, axis=1))


def transformer() -> Built:
    """8 blocks, subclassed."""
    model = Transformer(8, 128)
    model(ops.zeros((1, 128, 128)))
    return model, [(16, 128, 128)]


def wavenet() -> Built:
    """Dilated causal convolutions with gates; skips from every layer to the end."""
    x = inputs = keras.Input((512, 1))
    x, skips = layers.Conv1D(32, 1)(x), []
    for k in range(12):
        options = {"padding": "causal", "dilation_rate": 2 ** (k % 6)}
        gate = layers.Conv1D(32, 2, activation="sigmoid", **options)(x)
        z = layers.Conv1D(32, 2, activation="tanh", **options)(x) * gate
        skips.append(layers.Conv1D(32, 1)(z))
        x = x + layers.Conv1D(32, 1)(z)
    x = layers.ReLU()(layers.Add()(skips))
    return keras.Model(inputs, layers.Conv1D(1, 1)(x)), [(16, 512, 1)]


def seq2seq() -> Built:
    """Two LSTMs; the second attends to all states of the first."""
    source, target = keras.Input((128, 32)), keras.Input((128, 32))
    states, h, c = layers.LSTM(64, use_cudnn=False, return_sequences=True, return_state=True)(
        source
    )
    options = {"use_cudnn": False, "return_sequences": True}
    decoded = layers.LSTM(64, **options)(target, initial_state=[h, c])
    context = layers.Attention()([decoded, states])
    x = layers.Dense(32)(layers.Concatenate()([decoded, context]))
    return keras.Model([source, target], x), [(32, 128, 32), (32, 128, 32)]


def siamese() -> Built:
    """The same convolutions on two images."""
    tower = keras.Sequential([keras.Input((48, 48, 3))])
    for filters in (16, 32, 64):
        for _ in range(2):
            tower.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        tower.add(layers.MaxPooling2D())
    tower.add(layers.GlobalAveragePooling2D())
    one, other = keras.Input((48, 48, 3)), keras.Input((48, 48, 3))
    distance = ops.abs(tower(one) - tower(other))
    return keras.Model([one, other], layers.Dense(1)(distance)), [(16, 48, 48, 3)] * 2


def mixture_of_experts() -> Built:
    """Blocks of four experts, weighted by a gate."""
    x = inputs = keras.Input((256,))
    for _ in range(6):
        weights = layers.Dense(4, "softmax")(x)
        experts = [layers.Dense(256)(layers.Dense(512, "relu")(x)) for _ in range(4)]
        mixed = ops.sum(ops.stack(experts, axis=1) * weights[..., None], axis=1)
        x = layers.LayerNormalization()(x + mixed)
    return keras.Model(inputs, layers.Dense(1)(x)), [(512, 256)]


def vision_transformer() -> Built:
    """Patches of 8 x 8 and 6 blocks."""
    inputs = keras.Input((64, 64, 3))
    x = layers.Reshape((64, 128))(layers.Conv2D(128, 8, strides=8)(inputs))
    x = x + layers.Embedding(64, 128)(ops.arange(64))
    for _ in range(6):
        x = _transformer_block(x, 128)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(1)(x)), [(32, 64, 64, 3)]


def mlp_mixer() -> Built:
    """Dense layers over patches, and over channels."""
    x = inputs = keras.Input((64, 128))
    for _ in range(6):
        hidden = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        hidden = layers.Dense(64)(layers.Dense(128, "gelu")(hidden))
        x = x + layers.Permute((2, 1))(hidden)
        hidden = layers.Dense(256, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(128)(hidden)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x))), [(32, 64, 128)]


def two_losses() -> Built:
    """A common trunk, and two heads with a loss each."""
    x = inputs = keras.Input((32, 32, 3))
    for filters in (16, 32, 64):
        x = layers.MaxPooling2D()(_block(x, filters))
    first = layers.Dense(10, name="first")(layers.GlobalAveragePooling2D()(x))
    y = layers.Conv2DTranspose(16, 2, strides=2)(x)
    return keras.Model(inputs, [first, layers.Conv2D(1, 1, name="second")(_block(y, 16))]), [
        (32, 32, 32, 3)
    ]


def pyramid() -> Built:
    """A feature pyramid: each level is read from below and from above."""
    x = inputs = keras.Input((64, 64, 3))
    levels = []
    for filters in (16, 32, 64, 96):
        x = layers.MaxPooling2D()(_block(x, filters))
        levels.append(x)
    above = layers.Conv2D(32, 1)(levels[-1])
    heads = [layers.GlobalAveragePooling2D()(above)]
    for level in reversed(levels[:-1]):
        above = layers.Conv2D(32, 1)(level) + layers.UpSampling2D()(above)
        above = layers.Conv2D(32, 3, padding="same", activation="relu")(above)
        heads.append(layers.GlobalAveragePooling2D()(above))
    return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(heads))), [(8, 64, 64, 3)]


def _application(name: str, size: int) -> Callable[[], Built]:
    def build() -> Built:
        make = getattr(keras.applications, name)
        options = {"weights": None, "classes": 1, "classifier_activation": None}
        return make(input_shape=(size, size, 3), **options), [(8, size, size, 3)]

    return build


FAMILIES: dict[str, Callable[[], Built]] = {
    "mlp": mlp,
    "transformer": transformer,
    "lstm": lstm,
    "gru": gru,
    "bidirectional": bidirectional,
    "stacked": stacked,
    "conv_lstm": conv_lstm,
    "unet": unet,
    "attention_unet": attention_unet,
    "pyramid": pyramid,
    "wavenet": wavenet,
    "seq2seq": seq2seq,
    "siamese": siamese,
    "mixture_of_experts": mixture_of_experts,
    "vision_transformer": vision_transformer,
    "mlp_mixer": mlp_mixer,
    "two_losses": two_losses,
    "MobileNetV2": _application("MobileNetV2", 64),
    "EfficientNetB0": _application("EfficientNetB0", 64),
    "DenseNet121": _application("DenseNet121", 64),
    "ConvNeXtTiny": _application("ConvNeXtTiny", 64),
    "InceptionV3": _application("InceptionV3", 96),
    "Xception": _application("Xception", 96),
    "NASNetMobile": _application("NASNetMobile", 64),
}
