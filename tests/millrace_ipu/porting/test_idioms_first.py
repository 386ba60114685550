"""Idioms of the first lines of IPU programs."""

from idioms import idiom


@idiom("Imports", "`from tensorflow.python.ipu.config import IPUConfig`")
@idiom("Imports", "`from tensorflow.python.ipu import ipu_strategy`")
@idiom("Imports", "`from tensorflow import keras`, `from tensorflow.keras.layers import Dense`")
def test_the_imports_of_a_tutorial(program):
    assert (
        program("""
        import tensorflow as tf
        from tensorflow import keras
        from tensorflow.keras.layers import Dense
        from tensorflow.python.ipu import ipu_strategy
        from tensorflow.python.ipu.config import IPUConfig

        config = IPUConfig()
        config.auto_select_ipus = 1
        config.configure_ipu_system()
        with ipu_strategy.IPUStrategy().scope():
            model = keras.Sequential([keras.Input((3,)), Dense(2)])
        print(model.predict(tf.ones((4, 3)), batch_size=2, verbose=0).shape)
        """)
        == "(4, 2)\n"
    )
