"""Idioms of programs that use names which are not here: importing works, using says what to write.

The replacements are those of `millrace port`: the tables are the same.
"""

import pytest
from idioms import idiom

from millrace_ipu.errors import UnsupportedNameError
from millrace_ipu.porting.findings.port import port
from millrace_ipu.porting.replacements import IPU, TENSORFLOW, exists
from millrace_ipu.tensorflow.replacements import ADVICE


@idiom("Imports", "names that are imported and never used: `from tensorflow.lite import ...`")
@idiom("Imports", "annotations and `isinstance` with a class that is not here: `tf.RaggedTensor`")
def test_names_that_are_only_imported(program):
    assert (
        program("""
        from typing import Optional
        import tensorflow as tf
        import tensorflow.distribute as distribute
        import tensorflow.python.ipu.custom_ops
        from tensorflow.lite import TFLiteConverter
        from tensorflow.python import ipu
        from tensorflow.python.ipu import autoshard, embedding_ops, serving
        from tensorflow.python.ipu.embedding_ops import HostEmbeddingOptimizerSpec
        from tensorflow.python.ipu.ops import custom_ops

        def convert(rows: tf.RaggedTensor, spec: Optional[tf.distribute.Strategy] = None,
                    other: tf.lite.Interpreter | None = None) -> TFLiteConverter:
            return rows if isinstance(rows, tf.RaggedTensor) else list(rows)

        print(convert((1, 2)), isinstance(3, (tf.RaggedTensor, int)), hasattr(ipu, "custom_ops"))
        print(hasattr(tf.lite.Optimize, "DEFAULT"), getattr(tf.lite.Optimize, "DEFAULT", 5))
        """)
        == "[1, 2] True True\nFalse 5\n"
    )


USES = {
    "a call of `ipu.custom_ops.precompiled_user_op`": (
        "ipu.custom_ops.precompiled_user_op([x], 'op.so')",
        "ipu.custom_ops.precompiled_user_op",
    ),
    "`ipu.embedding_ops.HostEmbedding`": (
        "ipu.embedding_ops.HostEmbedding('table', None)",
        "ipu.embedding_ops.HostEmbedding",
    ),
    "`ipu.serving.export_keras`": ("ipu.serving.export_keras(x, 'd')", "ipu.serving.export_keras"),
    "`ipu.autoshard.automatic_sharding`": (
        "ipu.autoshard.automatic_sharding(2, x, x)",
        "ipu.autoshard.automatic_sharding",
    ),
    "`tf.raw_ops`": ("tf.raw_ops.Add(x=x, y=x)", "tf.raw_ops.Add"),
    "`tf.lite.TFLiteConverter`": (
        "tf.lite.TFLiteConverter.from_keras_model(x)",
        "tf.lite.TFLiteConverter.from_keras_model",
    ),
    "`tf.distribute.MirroredStrategy()`": (
        "tf.distribute.MirroredStrategy()",
        "tf.distribute.MirroredStrategy",
    ),
    "`tf.train.Checkpoint(model=model)`": (
        "tf.train.Checkpoint(model=x)",
        "tf.train.Checkpoint",
    ),
    "`tf.compat.v1.train.Saver()`": (
        "tf.compat.v1.train.Saver()",
        "tf.compat.v1.train.Saver",
    ),
    "`tf.saved_model.save`": ("tf.saved_model.save(x, 'd')", "tf.saved_model.save"),
    "`ipu.utils.extract_all_events`": (
        "ipu.utils.extract_all_events(x)",
        "ipu.utils.extract_all_events",
    ),
    "`tf.py_function`": ("tf.py_function(print, [x], [])", "tf.py_function"),
}  # fmt: skip


@idiom(
    "Unsupported, with an error that says what to write",
    "a call of `ipu.custom_ops.precompiled_user_op`",
)
@idiom("Unsupported, with an error that says what to write", "`ipu.embedding_ops.HostEmbedding`")
@idiom("Unsupported, with an error that says what to write", "`ipu.serving.export_keras`")
@idiom("Unsupported, with an error that says what to write", "`ipu.autoshard.automatic_sharding`")
@idiom("Unsupported, with an error that says what to write", "`tf.raw_ops`")
@idiom("Unsupported, with an error that says what to write", "`tf.lite.TFLiteConverter`")
@idiom("Unsupported, with an error that says what to write", "`tf.distribute.MirroredStrategy()`")
@idiom("Unsupported, with an error that says what to write", "`tf.train.Checkpoint(model=model)`")
@idiom("Unsupported, with an error that says what to write", "`tf.compat.v1.train.Saver()`")
@idiom("Unsupported, with an error that says what to write", "`tf.saved_model.save`")
@idiom("Unsupported, with an error that says what to write", "`ipu.utils.extract_all_events`")
@idiom("Unsupported, with an error that says what to write", "`tf.py_function`")
@pytest.mark.parametrize("text", USES)
def test_the_error_says_what_port_says(program, text):
    use, name = USES[text]
    code = f"import tensorflow as tf\nfrom tensorflow.python import ipu\nx = 1\n{use}\n"
    with pytest.raises(UnsupportedNameError) as caught:
        program(code)
    (finding,) = port(code)
    assert finding.what == name
    message = f"{name} is not in millrace. In its place: {finding.instead}. `millrace port`"
    assert str(caught.value).startswith(message)


@idiom(
    "Unsupported, with an error that says what to write",
    "a subclass of `tf.compat.v1.train.SessionRunHook`",
)
@idiom(
    "Unsupported, with an error that says what to write",
    "`with tf.profiler.experimental.Profile(...)`, a constant of `tf.lite`",
)
@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("class Hook(tf.compat.v1.train.SessionRunHook): pass", r"\.SessionRunHook is not .*: an"),
        ("with tf.profiler.experimental.Profile('d'): pass", r"Profile is not .*: jax.profiler"),
        ("x = tf.lite.Optimize.DEFAULT", r"tf.lite.Optimize.DEFAULT is not in"),
        ("for x in tf.config.list_physical_devices('IPU'): pass", r"list_physical_devices is not"),
        ("tf.dynamic_partition([1], [0], 1)", r"tf.dynamic_partition is not .* keras.ops.where"),
        ("from tensorflow.lite import Interpreter as I\nI('x')", r"tf.lite.Interpreter is not in"),
        ("tf.TensorArray(tf.float32, 3)", r"tf.TensorArray is not in .*: a Python list"),
    ],
)
def test_other_uses(program, use, message):
    with pytest.raises(UnsupportedNameError, match=message):
        program(f"import tensorflow as tf\n{use}\n")


@idiom("Imports", "`try: import popart` with a fallback, and `importlib.util.find_spec`")
@idiom(
    "Unsupported, with an error that says what to write",
    "`import popart`, `poptorch`, `pva`, `gcipuinfo`, `horovod`",
)
def test_packages_that_are_not_installed(program):
    assert (
        program("""
        import importlib.util
        try:
            import popart
        except ImportError as error:
            popart = None
        try:
            import horovod.tensorflow as hvd
        except ModuleNotFoundError:
            hvd = None
        print(popart, hvd, importlib.util.find_spec("pva"))
        """)
        == "None None None\n"
    )
    for package, instead in (
        ("popart", "a Keras model"),
        ("pva", r"millrace.records.load\(directory\)"),
        ("gcipuinfo", r"strategy.statistics\(\)"),
        ("horovod.tensorflow", "`millrace launch`"),
    ):
        with pytest.raises(ModuleNotFoundError, match=rf"{package[:6]}.*In its place: .*{instead}"):
            program(f"import {package}")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_package'$"):
        program("import no_such_package")


@idiom("Imports", "`hasattr(tf, 'contrib')`, to recognise TensorFlow 1")
def test_what_tensorflow_2_does_not_have_is_not_there(program):
    assert (
        program("""
        import tensorflow as tf
        from tensorflow.python import ipu
        print(hasattr(tf, "contrib"), hasattr(ipu, "no_such_module"), hasattr(tf, "no_such_name"))
        """)
        == "False False False\n"
    )


def test_every_entry_of_the_tables_raises_or_works(program):
    """No name of the tables gives a bare error: it exists, or raises ours when it is called."""
    names = {
        name.replace("tensorflow.", "tf.", 1): name
        for table in (IPU, TENSORFLOW, ADVICE)
        for name in table
        if not name.endswith("_") and not exists(name) and "contrib" not in name
    }
    assert len(names) > 60
    code = "\n".join(
        f"""
try:
    value = {shown}
    (value.any.Any if isinstance(value, types.ModuleType) else value)()
    print("{shown}: nothing raised")
except MillraceError as error:
    pass
"""
        for shown in names
    )
    head = "import types\nimport tensorflow as tf\nfrom tensorflow.python import ipu\n"
    assert program(f"{head}from millrace.errors import MillraceError\n{code}") == ""
