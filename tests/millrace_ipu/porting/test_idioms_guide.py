"""What programs of the IPU's user guide write: variables by name, older modules, exports."""

import re
import textwrap

import numpy as np
import pytest
from idioms import idiom

from millrace.errors import OptionError
from millrace_ipu.errors import UnsupportedNameError
from millrace_ipu.porting.findings.port import port
from millrace_ipu.tensorflow.graph_mode import set_graph_mode
from millrace_ipu.tensorflow.graph_variables import forget_variables


@pytest.fixture(autouse=True)
def no_graph():
    """Leaves no variables and no graph mode."""
    yield
    set_graph_mode(False)
    forget_variables()


LOOP = """
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import ipu_compiler, ipu_infeed_queue, ipu_outfeed_queue, loops
tf.disable_v2_behavior()

rows = tf.data.Dataset.from_tensors(tf.constant(1.0, shape=[2, 4])).repeat()
infeed = ipu_infeed_queue.IPUInfeedQueue(rows, feed_name="in")
outfeed = ipu_outfeed_queue.IPUOutfeedQueue(feed_name="out")

def body(x):
    with tf.variable_scope("layer", use_resource=True):
        w = tf.get_variable(
            "w", shape=[4, 4], initializer=tf.glorot_uniform_initializer(dtype=tf.float32))
        b = tf.get_variable("b", shape=[4], initializer=tf.constant_initializer(0.5))

    @ipu.function
    def multiply(a, b):
        return tf.matmul(a, b)

    return outfeed.enqueue(multiply(x, w) + b)

def net():
    return loops.repeat(3, body, [], infeed)

with tf.device("/device:IPU:0"):
    run_loop = ipu_compiler.compile(net, inputs=[])
dequeue = outfeed.dequeue()
config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(infeed.initializer)
    session.run(run_loop)
    out = session.run(dequeue)
with tf.variable_scope("layer"):
    w = session.run(tf.get_variable("w"))
print(out.shape, abs(out - w.sum(0) - 0.5).max() < 1e-6, abs(w).max() > 0)
"""


@idiom("TensorFlow", "`tf.get_variable('w', shape=[4, 4], initializer=...)` in a function")
@idiom("TensorFlow", "`with tf.variable_scope('layer', use_resource=True):`")
@idiom("TensorFlow", "`with tf.device('/device:IPU:0'):` around `ipu_compiler.compile`")
@idiom("Queues", "`IPUInfeedQueue(ds, feed_name='in')`, an argument of early releases")
@idiom("Layers", "`@ipu.function`, the earlier name of `outlined_function`")
def test_variables_by_name_in_a_loop(program):
    assert program(LOOP).split("\n")[-2] == "(3, 2, 4) True True"


PIPELINE = """
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
tf.disable_v2_behavior()

x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
rows = tf.data.Dataset.from_tensor_slices((x, x @ np.array([[1.], [2.]], np.float32)))
infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(rows.batch(2, drop_remainder=True).repeat())
outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

def stage1(rate, x, y):
    with tf.variable_scope("stage1"):
        w = tf.get_variable("w", [2, 2], initializer=tf.constant_initializer(0.5))
    return rate, x @ w, y

def stage2(rate, x, y):
    with tf.variable_scope("stage2"):
        w = tf.get_variable("w", initializer=np.ones((2, 1), np.float32))
    return rate, tf.reduce_mean((x @ w - y) ** 2)

def update(rate, loss):
    optimizer = OPTIMIZER
    return ipu.pipelining_ops.OptimizerFunctionOutput(optimizer, loss)

def net(rate):
    return ipu.pipelining_ops.pipeline(
        [stage1, stage2], gradient_accumulation_count=2, repeat_count=3, inputs=[rate],
        infeed_queue=infeed, outfeed_queue=outfeed, optimizer_function=update,
        outfeed_loss=True, pipeline_schedule=ipu.pipelining_ops.PipelineSchedule.Sequential)

rate = tf.placeholder(np.float32, [])
with ipu.scopes.ipu_scope("/device:IPU:0"):
    run = ipu.ipu_compiler.compile(net, inputs=[rate])
losses = outfeed.dequeue()
config = ipu.config.IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()
with tf.Session() as session:
    session.run([tf.global_variables_initializer(), infeed.initializer])
    session.run(run, {rate: 0.1})
    print([float(loss) for loss in session.run(losses)])
"""


def expected_losses(change):
    """Returns the losses of the pipeline, by NumPy."""
    x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
    y = x @ np.array([[1.0], [2.0]])
    w, v, losses, state = np.full((2, 2), 0.5), np.ones((2, 1)), [], {}
    for update in range(3):
        sums = [0.0, 0.0]
        for k in (2 * update, 2 * update + 1):
            a, b = x[2 * k : 2 * k + 2], y[2 * k : 2 * k + 2]
            error = a @ w @ v - b
            losses.append((error**2).mean())
            sums[0] = sums[0] + a.T @ error @ v.T
            sums[1] = sums[1] + (a @ w).T @ error
        w = w + change(sums[0] / 2 * DIVIDED, state, "w")
        v = v + change(sums[1] / 2 * DIVIDED, state, "v")
    return losses


DIVIDED = 2  # the gradients of two micro-batches are summed


def momentum(gradient, state, key):
    state[key] = 0.5 * state.get(key, 0) + gradient
    return -0.1 * state[key]


def adam(gradient, state, key):
    t, m, v = state.get(key, (0, 0, 0))
    t, m, v = t + 1, 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
    state[key] = t, m, v
    return -0.1 * np.sqrt(1 - 0.99**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)


@idiom("Pipelines", "`tf.train.GradientDescentOptimizer(0.01)` in the optimizer function")
@idiom("Pipelines", "`tf.train.MomentumOptimizer`, `tf.train.AdamOptimizer`, in the same place")
@pytest.mark.parametrize(
    ("optimizer", "change"),
    [
        ("tf.train.GradientDescentOptimizer(0.1)", lambda gradient, *_: -0.1 * gradient),
        ("tf.train.MomentumOptimizer(0.1, 0.5)", momentum),
        ("tf.train.AdamOptimizer(0.1, beta2=0.99)", adam),
    ],
)
def test_optimizers_of_tensorflow_1_in_a_pipeline(program, optimizer, change):
    losses = eval(program(PIPELINE.replace("OPTIMIZER", optimizer)).split("\n")[-2])
    np.testing.assert_allclose(losses, expected_losses(change), rtol=1e-4)


def test_variables_are_those_of_their_graph_and_scope(program):
    out = program("""
        import tensorflow.compat.v1 as tf
        with tf.variable_scope("a", initializer=tf.ones_initializer()):
            with tf.variable_scope("b", reuse=tf.AUTO_REUSE) as scope:
                first = tf.get_variable("w", [2])
        with tf.variable_scope(scope):
            print(tf.get_variable("w") is first, scope.name, first.numpy())
        print(tf.get_variable("w", 2) is first, tf.get_variable("n", [], tf.int32).numpy())
        with tf.Graph().as_default():
            print(tf.get_variable("w", [3], trainable=False).trainable)
    """)
    assert out.split("\n")[:3] == ["True a/b [1. 1.]", "False 0", "False"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("('w', [3])", "get_variable('w') asks for the shape (3,), and the variable of"),
        ("('v')", "get_variable('v') makes a new variable without a shape. Set shape="),
        ("('v', [2], regularizer=abs)", "regularizer of get_variable('v') would add to no loss"),
    ],
)  # fmt: skip
def test_variables_that_cannot_be_made(program, call, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        program(
            f"import tensorflow.compat.v1 as tf\ntf.get_variable('w', [2])\ntf.get_variable{call}"
        )


@idiom("Imports", "`from tensorflow.python.keras.optimizer_v2.adam import Adam`")
@idiom("Imports", "`from keras.optimizer_v2 import gradient_descent`")
@idiom("Imports", "`from tensorflow.python.ipu import cross_replica_optimizer`")
@idiom("Training", "`reduction=keras.losses.losses_utils.ReductionV2.SUM`")
def test_modules_of_optimizers_and_losses(program):
    out = program("""
        from tensorflow.python.keras.optimizer_v2.adam import Adam
        from tensorflow.python.keras.optimizer_v2.rmsprop import RMSprop
        from keras.optimizer_v2 import gradient_descent
        from keras.optimizer_v2.gradient_descent import SGD
        from keras.utils import losses_utils
        import keras
        from tensorflow.python.ipu import cross_replica_optimizer, gradient_accumulation_optimizer
        from tensorflow.compiler.plugin.poplar.ops import gen_ipu_ops
        cross_replica_optimizer.CrossReplicaOptimizer(SGD(0.1))
        gradient_accumulation_optimizer.GradientAccumulationOptimizerV2(SGD(0.1), 2)
        mse = keras.losses.MeanSquaredError(reduction=keras.losses.losses_utils.ReductionV2.SUM)
        print(Adam is keras.optimizers.Adam, gradient_descent.SGD is SGD, RMSprop.__name__)
        print(float(mse([[1.0], [2.0]], [[0.0], [0.0]])), losses_utils.ReductionV2.NONE)
    """)
    assert out == "True True RMSprop\n5.0 none\n"


EXPORTS = {
    "model.export_for_ipu_serving": "model.export_for_ipu_serving('directory')",
    "ipu.gen_ipu_ops.ipu_event_trace": "gen_ipu_ops.ipu_event_trace()",
    "ipu.keras.layers.CaptureActivationGradients": "CaptureActivationGradients(model)",
}


@idiom(
    "Unsupported, with an error that says what to write",
    "`model.export_for_ipu_serving(directory)`",
)
@idiom("Unsupported, with an error that says what to write", "`gen_ipu_ops.ipu_event_trace()`")
@idiom("Unsupported, with an error that says what to write", "`CaptureActivationGradients(layer)`")
@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_not_here_says_what_to_write(program, name):
    with pytest.raises(UnsupportedNameError, match=rf"^{re.escape(name)} is not .* In its place: "):
        program(f"""
            import keras
            from keras.ipu.layers import CaptureActivationGradients
            from tensorflow.compiler.plugin.poplar.ops import gen_ipu_ops
            from tensorflow.python import ipu
            with ipu.ipu_strategy.IPUStrategy().scope():
                model = keras.Sequential([keras.layers.Dense(2)])
            {EXPORTS[name]}
        """)


@idiom("TensorFlow", "`tf.slice(x, [i * n, 0], [n, shape[1]])`, with `shape = tf.shape(x)`")
@idiom("TensorFlow", "`tf.slice(x, [0, 1], [-1, 2])`: all rows")
def test_slices_of_sizes_that_the_shape_gives(program):
    out = program("""
        import tensorflow as tf
        from tensorflow.python import ipu
        @tf.function(jit_compile=True)
        def halves(x):
            shape = tf.shape(x)
            n = shape[0] // 2
            parts = [tf.slice(x, [i * n, 0], [n, shape[1]]) for i in range(2)]
            return tf.stack(parts), tf.slice(x, [0, 1], [-1, 2]), tf.reshape(x, [shape[1], -1])
        strategy = ipu.ipu_strategy.IPUStrategy()
        with strategy.scope():
            first, second, third = strategy.run(halves, [tf.reshape(tf.range(12.0), [4, 3])])
        print(first[1, 0].tolist(), second.tolist()[3], third.shape)
        print(tf.slice(tf.range(5), [2], [-1]).numpy(), tf.shape(tf.zeros([2, 3])).numpy())
    """)
    assert out == "[6.0, 7.0, 8.0] [10.0, 11.0] (3, 4)\n[2 3 4] [2 3]\n"


PREDICTED = """
import keras
from tensorflow.python import ipu
with ipu.ipu_strategy.IPUStrategy().scope() as strategy:
    model = keras.Sequential([keras.layers.Dense(2)])
LINE
"""


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("model.export_for_ipu_serving('d')", "model.save('model.keras'), and model.predict in"),
        ("strategy.experimental_run_v2(print)", "run"),
        ("ipu.keras.layers.CaptureActivationGradients(model)", "the layer that it wraps"),
        ("ipu.normalization_ops.layer_norm(x, center=False, scale=False)", None),
        ("ipu.function(print)", None),
        ("ipu.ipu_infeed_queue.IPUInfeedQueue([], feed_name='a')", None),
    ],
)
def test_port_says_the_same(line, instead):
    findings = [each for each in port(PREDICTED.replace("LINE", line)) if each.blocks]
    assert [each.instead.startswith(instead or "-") for each in findings] == [True] * bool(instead)


V1 = """
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import variables
with tf.variable_scope("a", reuse=tf.AUTO_REUSE):
    w = tf.get_variable("w", [2], initializer=tf.truncated_normal_initializer(dtype=tf.float32))
tf.train.MomentumOptimizer(0.1, 0.9)
variables.global_variables_initializer()
"""


def test_port_lets_variables_and_optimizers_pass(program):
    assert not [each for each in port(V1) if each.blocks]
    program(V1)


@idiom("Models", "`super().__init__(self)` in a subclass of `keras.Model`")
def test_a_model_that_passes_itself(program):
    assert (
        program("""
        import keras
        class Own(keras.Model):
            def __init__(self):
                super().__init__(self)
                self.dense = keras.layers.Dense(3)
            def call(self, inputs):
                return self.dense(inputs)
        model = Own()
        model(keras.ops.ones((2, 4)))
        print(model.trainable, model.count_params())
    """)
        == "True 15\n"
    )


def test_port_finds_a_name_that_a_module_of_the_ipu_lacks():
    (finding,) = port("from tensorflow.python.ipu.config import ExecutionProfileType, IPUConfig")
    assert (finding.what, finding.blocks) == ("ipu.config.ExecutionProfileType", True)


def test_port_knows_the_dtypes_of_optimizers_of_the_addons():
    assert not port("""
import tensorflow as tf
from ipu_tensorflow_addons.keras.optimizers import AdamIpuOptimizer
AdamIpuOptimizer(0.1, m_dtype=tf.float16, outline_apply_gradients=True)
""")


def test_a_computed_loss_has_nothing_to_minimize(program):
    code = """
        import tensorflow.compat.v1 as tf
        optimizer = tf.train.AdamOptimizer(0.1)
        optimizer.minimize(tf.constant(1.0))
    """
    with pytest.raises(
        UnsupportedNameError, match=r"train.AdamOptimizer.minimize.*tf.GradientTape"
    ):
        program(code)
    (finding,) = port(textwrap.dedent(code))
    assert (finding.line, finding.what, finding.blocks) == (4, ".minimize()", True)


@idiom("TensorFlow", "`tf.random.stateless_uniform(shape, seed=[1, 2])`, and `stateless_normal`")
@idiom("Data", "`json.loads(dataset_benchmark(ds, 10, 512).numpy()[0])`")
def test_random_numbers_of_a_seed_and_benchmarks(program):
    out = program("""
        import json
        import tensorflow as tf
        from tensorflow.python import ipu
        @tf.function(jit_compile=True)
        def draw(seed):
            return (tf.random.stateless_uniform([500], seed, 2.0, 4.0),
                    tf.random.stateless_normal([500], seed=seed, mean=3.0, stddev=0.1),
                    tf.random.stateless_truncated_normal([500], seed),
                    tf.random.stateless_uniform([500], seed, 0, 3, tf.int32))
        with ipu.ipu_strategy.IPUStrategy().scope() as strategy:
            draws = [strategy.run(draw, [tf.constant(s)]) for s in ([1, 2], [1, 2], [2, 1])]
        for first, same, other in zip(*draws):
            print(bool((first == same).all()), bool((first == other).all()))
        u, n, t, i = draws[0]
        print(2 <= u.min() and u.max() < 4, 2.9 < n.mean() < 3.1, abs(t).max() <= 2)
        print(set(i.tolist()))
        data = tf.data.Dataset.from_tensor_slices(u).batch(4).repeat()
        text = ipu.dataset_benchmark.dataset_benchmark(data, 2, 5, print_stats=False).numpy()[0]
        print(len(json.loads(text)["epochs"]))
    """)
    assert out == "True False\n" * 4 + "True True True\n{0, 1, 2}\n2\n"
