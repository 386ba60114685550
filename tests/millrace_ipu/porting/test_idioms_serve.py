"""Idioms of imports: `keras.ipu`, names of Keras 2, and private modules of TensorFlow."""

import importlib
import sys

import keras
import pytest
from idioms import idiom

from millrace._compat.patches import patches_in
from millrace_ipu._compat.patch_table import OLD_ATTRIBUTES

KERAS_IMPORTS = {
    "import keras": "keras",
    "import keras as K": "K",
    "from tensorflow import keras": "keras",
    "import tensorflow as tf": "tf.keras",
    "import tensorflow.keras as tk": "tk",
    "from tensorflow.python import keras": "keras",
    "import tensorflow": "getattr(tensorflow, 'keras')",
}


@idiom("Imports", "`keras.ipu.PipelineStage` after `import keras`, under any name")
@idiom("Imports", "`keras.ipu` after `from tensorflow import keras`")
@idiom("Imports", "`tf.keras.ipu`")
@pytest.mark.parametrize("line", KERAS_IMPORTS)
def test_keras_ipu_is_an_attribute(program, line):
    printed = program(f"""
        {line}
        from tensorflow.python.ipu import ipu_strategy
        with ipu_strategy.IPUStrategy().scope():
            with {KERAS_IMPORTS[line]}.ipu.PipelineStage(1):
                print("a stage")
        print(hasattr({KERAS_IMPORTS[line]}, "ipu"), hasattr({KERAS_IMPORTS[line]}, "nothing"))
    """)
    assert printed == "a stage\nTrue False\n"


@idiom("Imports", "`from keras import ipu`, `from tensorflow.keras import ipu`")
def test_keras_ipu_by_its_name(program):
    printed = program("""
        from keras import ipu
        from tensorflow.keras import ipu as same
        import keras.ipu.layers
        import tensorflow.keras.ipu.optimizers
        print(ipu is same is keras.ipu, ipu.layers.LayerNorm.__name__)
    """)
    assert printed == "True LayerNormalization\n"


@idiom("Imports", "`keras.ipu` in a ported program, after `from millrace_ipu import ipu`")
def test_keras_ipu_in_a_ported_program():
    from millrace_ipu import ipu

    assert keras.ipu is ipu.keras  # type: ignore[attr-defined]
    assert importlib.import_module("keras.ipu.layers") is ipu.keras.layers
    assert not hasattr(keras, "nothing")


def test_nothing_is_left_in_keras_when_the_script_ends(program):
    modules = [m for n, m in sys.modules.items() if n.partition(".")[0] == "keras"]
    before = [(module, dict(vars(module))) for module in modules]
    program("""
        import keras.layers.experimental.preprocessing
        from keras.optimizers.legacy import Adam
        import keras.ipu.layers
        import tensorflow.keras.utils.np_utils
        from keras.preprocessing.text import Tokenizer
        import keras.engine.training
    """)
    for module, names in before:
        now = vars(module)
        changed = {k for k in {*names, *now} if names.get(k) is not now.get(k)} - {"__getattr__"}
        assert changed == set(), module
    assert OLD_ATTRIBUTES not in patches_in()
    assert not hasattr(keras.backend, "mean")


@idiom("Imports", "`from tensorflow.python.data.ops.dataset_ops import Dataset`")
@idiom("Imports", "`from tensorflow.python.framework import ops, dtypes, constant_op`")
@idiom("Imports", "`from tensorflow.python.ops import math_ops, array_ops, nn_ops, random_ops`")
@idiom("Imports", "`from tensorflow.python.eager import def_function`")
@idiom("Imports", "`import tensorflow.python.util.nest as nest`")
def test_private_modules_have_public_names(program):
    printed = program("""
        import tensorflow as tf
        from tensorflow.python.data.ops.dataset_ops import Dataset, DatasetV2
        from tensorflow.python.framework import ops, dtypes, constant_op
        from tensorflow.python.framework.tensor_spec import TensorSpec
        from tensorflow.python.ops import math_ops, array_ops, nn_ops, random_ops, variables
        from tensorflow.python.eager import def_function
        import tensorflow.python.util.nest as nest
        import tensorflow.python.ops.control_flow_ops as control_flow

        print(Dataset is DatasetV2 is tf.data.Dataset, TensorSpec is tf.TensorSpec)
        print(def_function.function is tf.function, variables.Variable is tf.Variable)
        print(ops.convert_to_tensor([1.0]), dtypes.float32, constant_op.constant(2))
        print(math_ops.reduce_mean([1.0, 2.0]), array_ops.reshape([1, 2], [2, 1]).shape)
        print(nn_ops.relu([-1.0]), random_ops.random_uniform([3]).shape, nest.flatten([1, [2]]))
        print(tf.python.framework.dtypes.int32, control_flow.cond(True, lambda: 1, lambda: 2))
    """)
    assert printed == (
        "True True\nTrue True\n[1.] float32 2\n1.5 (2, 1)\n[0.] (3,) [1, 2]\nint32 1\n"
    )


@idiom("Imports", "`from keras.layers.core import Dense`, `keras.layers.convolutional`")
@idiom("Imports", "`from tensorflow.keras.layers.experimental import preprocessing`")
@idiom("Imports", "`from keras.utils import np_utils`, `np_utils.to_categorical`")
@idiom("Imports", "`tf.keras.optimizers.legacy.SGD`, `from keras.optimizers.legacy import Adam`")
@idiom("Imports", "`tf.keras.experimental.CosineDecay`")
@idiom("Imports", "`tf.losses.mse`, `tf.metrics.mae`, `tf.optimizers.Adam`")
def test_old_modules_of_keras(program):
    printed = program("""
        import tensorflow as tf
        from tensorflow import keras
        from keras.layers.core import Dense
        from tensorflow.keras.layers.convolutional import Conv2D
        from tensorflow.keras.layers.experimental import preprocessing
        from tensorflow.keras.optimizers import legacy
        from keras.optimizers.legacy import Adam
        from keras.utils import np_utils
        from tensorflow.keras.mixed_precision import experimental as mixed

        print(Dense is keras.layers.Dense, Conv2D is keras.layers.Conv2D)
        print(preprocessing.Rescaling is keras.layers.Rescaling)
        print(tf.keras.optimizers.legacy.SGD is legacy.SGD is tf.optimizers.SGD)
        print(Adam is keras.optimizers.Adam, np_utils.to_categorical([1], 2))
        print(mixed.set_policy is keras.mixed_precision.set_global_policy)
        print(tf.keras.experimental.CosineDecay is keras.optimizers.schedules.CosineDecay)
        print(tf.losses.mse is keras.losses.mean_squared_error is keras.metrics.mse)
        print(keras.layers.CuDNNLSTM is keras.layers.LSTM, keras.losses.Reduction.NONE)
    """)
    assert printed == ("True True\nTrue\nTrue\nTrue [[0. 1.]]\nTrue\nTrue\nTrue\nTrue none\n")


@idiom("Data", "`ImageDataGenerator`, `Tokenizer` and `TimeseriesGenerator` of Keras 2")
def test_preprocessing_of_keras_2(program):
    printed = program("""
        import numpy as np
        from tensorflow.keras.preprocessing.image import ImageDataGenerator
        from keras.preprocessing.text import Tokenizer
        from keras.preprocessing.sequence import TimeseriesGenerator, pad_sequences

        tokenizer = Tokenizer(num_words=5)
        tokenizer.fit_on_texts(["a b a", "a c"])
        print(pad_sequences(tokenizer.texts_to_sequences(["c a", "b"])).tolist())
        x, y = ImageDataGenerator(rescale=0.5).flow(np.ones((4, 2, 2, 3)), np.ones(4), 2)[0]
        print(x.max(), x.shape)
        print(TimeseriesGenerator(np.arange(5), np.arange(5), 2, batch_size=2)[0][1].tolist())
    """)
    assert printed == "[[3, 1], [0, 2]]\n0.5 (2, 2, 2, 3)\n[2, 3]\n"


@idiom("TensorFlow", "functions of `keras.backend`: `K.mean`, `K.int_shape`, `K.set_value`, ...")
def test_functions_of_the_backend(program):
    printed = program("""
        import numpy as np
        import tensorflow as tf
        from tensorflow.keras import backend as K
        import keras.backend

        x = tf.keras.Input((3,))
        y = tf.keras.layers.Lambda(lambda v: K.mean(v, axis=1, keepdims=True))(x)
        print(K.int_shape(y), tf.keras.Model(x, y)(np.ones((2, 3))).shape)
        v = K.variable([1.0, 2.0])
        K.set_value(v, [3.0, 4.0])
        print(K.get_value(v), K.sum(v), K.ndim(v), keras.backend.eval(K.square(v)))
        print(K.dot(np.ones((2, 3)), np.ones((3, 4))).shape, K.clip(v, None, 3.5))
        print(K.batch_dot(np.ones((5, 2, 3)), np.ones((5, 3, 4))).shape)
        print(K.hard_sigmoid(np.array([-3.0, 1.0])), K.switch(np.array(True), 1, 2))
        K.set_epsilon(1e-6)
        K.set_image_data_format("channels_last")
        print(K.epsilon(), K.floatx(), K.image_data_format())
        K.set_epsilon(1e-7)
    """)
    assert printed == (
        "(None, 1) (2, 1)\n[3. 4.] 7.0 1 [ 9. 16.]\n(2, 4) [3.  3.5]\n(5, 2, 4)\n[0.  0.7] 1\n"
        "1e-06 float32 channels_last\n"
    )


@pytest.mark.slow
@idiom("Imports", "`from tensorflow.python.keras.applications import resnet`, `resnet.ResNet(...)`")
def test_a_resnet_of_ones_own_stacks(program):
    printed = program("""
        from tensorflow.keras import layers
        from tensorflow.python.keras.applications import resnet

        def stacks(x):
            return layers.Conv2D(4, 3, padding="same", name="stack")(x)

        model = resnet.ResNet(
            stacks, False, False, "small", True, None, None, (32, 32, 3), None, 5, layers=layers
        )
        print(model.output_shape, model.get_layer("stack").filters)
    """)
    assert printed == "(None, 5) 4\n"
