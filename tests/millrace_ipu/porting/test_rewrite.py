"""`millrace port --diff` and `--write`: what is mechanical changes, and nothing else."""

import os
import pathlib

import pytest
from click.testing import CliRunner

from millrace.tools.cli.main import main
from millrace_ipu.porting.findings.port import rewrite
from millrace_ipu.porting.findings.program import PortedProgram

FIRST = "import millrace  # before keras: it makes JAX the backend of Keras\n"
HEAD = "from millrace_ipu import tensorflow as tf\nimport keras\nfrom millrace_ipu import ipu\n"


def rewritten(text):
    """The text of a program after its edits."""
    program = PortedProgram([], text)
    rewrite(program)
    return program.modules[0].source.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import tensorflow as tf\n", "from millrace_ipu import tensorflow as tf\n"),
        ("import tensorflow\n", "from millrace_ipu import tensorflow\n"),
        ("import tensorflow.keras.layers\n", "from millrace_ipu import tensorflow\n"),
        (
            "import tensorflow.compat.v1 as tf\n",
            "from millrace_ipu.tensorflow.compat import v1 as tf\n",
        ),
        (
            "import os, tensorflow as tf, numpy as np  # all\n",
            "import os\nfrom millrace_ipu import tensorflow as tf\nimport numpy as np  # all\n",
        ),
        ("from tensorflow import keras\n", f"{FIRST}import keras\n"),
        ("from tensorflow import keras as K\n", f"{FIRST}import keras as K\n"),
        (
            "from tensorflow.keras.layers import (Dense,  # one\n    LSTM)\n",
            f"{FIRST}from keras.layers import (Dense,  # one\n    LSTM)\n",
        ),
        (
            "from tensorflow.python import ipu, keras\n",
            "from millrace_ipu import ipu\nimport keras\n",
        ),
        (
            "from tensorflow.python.ipu.config import IPUConfig as C\n",
            "from millrace_ipu.ipu.config import IPUConfig as C\n",
        ),
        (
            "import tensorflow.python.ipu.utils as u\n",
            "from millrace_ipu.ipu import utils as u\n",
        ),
        (
            "from tensorflow.python.data.ops.dataset_ops import Dataset\n",
            "from millrace_ipu.tensorflow.data import Dataset\n",
        ),
        (
            "from outfeed_wrapper import MaybeOutfeedQueue\n",
            "from millrace_ipu.ipu.outfeed_wrapper import MaybeOutfeedQueue\n",
        ),
        (
            "def f():\n    import tensorflow as tf; return tf\n",
            "def f():\n    from millrace_ipu import tensorflow as tf; return tf\n",
        ),
        (
            "try:\n    import os, tensorflow as tf\nfinally:\n    pass\n",
            "try:\n    import os\n    from millrace_ipu import tensorflow as tf\n"
            "finally:\n    pass\n",
        ),
        ("import numpy as np\nimport jax\n", "import numpy as np\nimport jax\n"),
        (HEAD, HEAD),
    ],
)
def test_imports(before, after):
    assert rewritten(before) == after
    assert rewritten(after) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("keras.Input(shape=(80))", "keras.Input(shape=(80,))"),
        ("keras.Input(shape = 80 , name='x')", "keras.Input(shape = (80,) , name='x')"),
        ("keras.Input(80)", "keras.Input((80,))"),
        ("keras.Input((80))", "keras.Input((80,))"),
        ("keras.Input( ( 80 ) )", "keras.Input( ( 80, ) )"),
        ("keras.Input(shape=(80,))", "keras.Input(shape=(80,))"),
        ("keras.Input(shape=x.shape[1])", "keras.Input(shape=(x.shape[1],))"),
        ("keras.Input(shape=(size))", "keras.Input(shape=(size))"),
        ("keras.optimizers.SGD(lr=r, momentum=0.9)",) * 2,
        ("m.fit(x, y, workers=4, epochs=2)", "m.fit(x, y, epochs=2)"),
        ("m.fit(x, workers=4)", "m.fit(x)"),
        ("m.fit(workers=4, x=x)", "m.fit(x=x)"),
        ("m.fit(workers=4)", "m.fit()"),
        ("m.fit((x), workers=(4),)", "m.fit((x),)"),
        (
            "m.fit(x,  # rows\n      workers=4,\n      epochs=2)",
            "m.fit(x,  # rows\n      epochs=2)",
        ),
        ("m.fit(x,\n      workers=4)", "m.fit(x)"),
        ("m.fit_generator(g, epochs=1)", "m.fit(g, epochs=1)"),
        ("model.save_weights('a/b')", "model.save_weights('a/b.weights.h5')"),
        ("model.save_weights(f'a/{n}-last')", "model.save_weights(f'a/{n}-last.weights.h5')"),
        ("model.save_weights('a.h5')", "model.save_weights('a.weights.h5')"),
        ("model.save_weights(d + '/w')", "model.save_weights(d + '/w.weights.h5')"),
        ("model.save_weights(name)", "model.save_weights(name)"),
        ("model.load_weights('a').expect_partial()", "model.load_weights('a.weights.h5')"),
        ("figure.save('a')", "figure.save('a')"),
        ("tf.keras.layers.core.Dense(3)", "keras.layers.Dense(3)"),
        ("print('ä', keras.backend.mean(x))", "print('ä', keras.ops.mean(x))"),
        ("keras.backend.argmax(x)", "keras.backend.argmax(x)"),
        ("keras.losses.Reduction.NONE", "'none'"),
        ("keras.ipu.PipelineStage(0)", "ipu.keras.PipelineStage(0)"),
        ("x.shape.as_list()", "list(x.shape)"),
        ("x.get_shape().as_list()", "list(x.shape)"),
        ("model.optimizer.lr = 0.1", "model.optimizer.learning_rate = 0.1"),
        ("f(options.lr, forest.predict_proba(x))", "f(options.lr, forest.predict_proba(x))"),
        ("self.add_weight('w', [2])", "self.add_weight(name='w', shape=[2])"),
        (
            "keras.callbacks.ModelCheckpoint('c', save_weights_only=True, period=1)",
            "keras.callbacks.ModelCheckpoint('c.weights.h5', save_weights_only=True, "
            'save_freq="epoch")',
        ),
        ("'é'; keras.optimizers.SGD(lr=1); '€'", "'é'; keras.optimizers.SGD(learning_rate=1); '€'"),
    ],
)
def test_expressions(before, after):
    if before == after and "lr=" in before:
        after = before.replace("lr=", "learning_rate=")
    assert rewritten(f"{HEAD}\n{before}\n") == f"{HEAD}\n{after}\n"
    assert rewritten(f"{HEAD}\n{after}\n") == f"{HEAD}\n{after}\n"


@pytest.mark.parametrize(
    ("newline", "cookie", "encoding"),
    [
        ("\n", "", "utf-8"),
        ("\r", "", "utf-8-sig"),
        ("\r\n", "# -*- coding: latin-1 -*-\n", "latin-1"),
    ],
)
def test_encoding_and_line_endings_stay(tmp_path, newline, cookie, encoding):
    lines = (
        f"{cookie}import os, tensorflow as tf\n\x0c\nx = 'ü'; k = tf.keras.Input(shape=(3))  # é\n"
    )
    path = tmp_path / "program.py"
    path.write_bytes(lines.replace("\n", newline).encode(encoding))
    path.chmod(0o750)
    for each in rewrite(PortedProgram([path])):
        each.write()
    after = lines.replace("os, tensorflow", "os\nfrom millrace_ipu import tensorflow").replace(
        "(3)", "(3,)"
    )
    assert path.read_bytes() == after.replace("\n", newline).encode(encoding)
    assert path.stat().st_mode & 0o777 == 0o750
    assert os.listdir(tmp_path) == ["program.py"]


def test_docstrings_and_future_imports_stay_first():
    text = '"""Trains."""\nfrom __future__ import annotations\n\n@wraps\ndef f(): return 1\n'
    text += "from tensorflow import keras\n"
    after = text.replace("@wraps", f"{FIRST}@wraps").replace(
        "from tensorflow import keras", "import keras"
    )
    assert rewritten(text) == after
    assert rewritten(after) == after


def test_the_modules_of_a_program_change_with_it(tmp_path):
    (tmp_path / "nets").mkdir()
    script, module = tmp_path / "train.py", tmp_path / "nets" / "mlp.py"
    script.write_text("from nets import mlp\nimport os\n")
    module.write_text("import tensorflow as tf\n")
    files = rewrite(PortedProgram([script]))
    assert [each.path.name for each in files] == ["mlp.py"]
    assert script.read_text() == "from nets import mlp\nimport os\n"


def run(*words):
    result = CliRunner().invoke(main, ["port", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def test_diff_prints_and_write_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = pathlib.Path("program.py")
    text = "import tensorflow as tf\n\ntf.keras.Input(shape=(3))\n"
    path.write_text(text)
    diff = (
        "--- program.py\n+++ program.py\n@@ -1,3 +1,3 @@\n"
        "-import tensorflow as tf\n+from millrace_ipu import tensorflow as tf\n \n"
        "-tf.keras.Input(shape=(3))\n+tf.keras.Input(shape=(3,))\n"
    )
    status, out, messages = run("--diff", path)
    assert (status, out) == (0, diff)
    assert messages.startswith("1 file to rewrite. Nothing else to port")
    assert path.read_text() == text
    status, out, messages = run("--write", path)
    assert (status, out) == (0, diff)
    assert messages.startswith("1 file rewritten. ")
    assert path.read_text().startswith("from millrace_ipu import tensorflow as tf\n")
    status, out, messages = run("--write", path)
    assert (status, out) == (0, "")
    assert messages.startswith("1 file: nothing to port")


def test_what_is_left_is_listed(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import tensorflow as tf\ntf.strings.split(x)\n")
    status, _, messages = run("--write", path)
    assert status == 1
    assert messages.splitlines()[0].startswith(f"{path}:2: tf.strings.split  ->  ")


def test_nothing_is_rewritten_where_a_file_cannot_be_read(tmp_path):
    good, broken = tmp_path / "good.py", tmp_path / "broken.py"
    good.write_text("import tensorflow as tf\n")
    broken.write_text("def f(:\n")
    status, out, messages = run("--write", good, broken)
    assert (status, out) == (2, "")
    assert messages.splitlines()[-1] == "Nothing was rewritten."
    assert good.read_text() == "import tensorflow as tf\n"


def test_the_flags():
    assert [each.opts[0] for each in main.commands["port"].params] == [
        "scripts",
        "--diff",
        "--write",
    ]
