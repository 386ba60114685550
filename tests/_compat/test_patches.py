"""Each patch: the name is still looked up where it is put in, and comes out again."""

import importlib
import pathlib
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace._compat import patch_table, patches
from millrace._compat.patches import Patch, While, patches_in, replace, take_out
from millrace.errors import MillraceError
from millrace_ipu._compat import patch_table as ipu_patch_table
from millrace_ipu._compat.module_aliases import (
    serve,
    show_own_tensorflow,
    show_tensorflow,
    stop_serving,
)

PATCHES = (*patch_table.PATCHES, *ipu_patch_table.PATCHES)
DOCS = pathlib.Path(__file__).parents[2] / "docs" / "patches.md"


def compiled():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def run(loop):
    getattr(compiled(), loop)(np.zeros((1, 1), "float32"), verbose=0)


def fit():
    compiled().fit(np.zeros((1, 1), "float32"), np.zeros((1, 1), "float32"), verbose=0)


def evaluate():
    compiled().evaluate(np.zeros((1, 1), "float32"), np.zeros((1, 1), "float32"), verbose=0)


def normalize():
    keras.layers.BatchNormalization()(keras.ops.ones((2, 1)), training=True)


def rematerialize():
    with keras.RematScope(mode="full"):
        layer = keras.layers.Dense(1)
        layer(jnp.ones((1, 1)))


def call_graph():
    inputs = keras.Input((1,))
    keras.Model(inputs, keras.layers.ReLU()(inputs)).stateless_call([], [], jnp.ones((1, 1)))


def apply_gradients():
    variable = keras.Variable(1.0)
    keras.optimizers.SGD().apply_gradients([(jnp.ones(()), variable)])


def end():
    with pytest.raises(SystemExit):
        sys.exit(3)


def scale_loss():
    variable = keras.Variable(1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    optimizer.build([variable])
    state = [each.value for each in optimizer.variables]
    optimizer.stateless_apply(state, [jnp.ones(())], [variable.value])


def build_by_run():
    class OwnModel(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    OwnModel()(np.ones((1, 1), "float32"))


def branch():
    keras.ops.cond(jnp.array(True), lambda: jnp.ones(()), lambda: jnp.zeros(()))


# What ends in the name that each patch puts a function in place of.
USES = {
    patch_table.MODEL_INIT: compiled,
    patch_table.SUPPORTS_JIT: lambda: keras.Sequential().compile("sgd", "mse"),
    patch_table.FIT: fit,
    patch_table.EVALUATE: evaluate,
    patch_table.PREDICT: lambda: run("predict"),
    patch_table.LAYER_CALL: call_graph,
    patch_table.STATELESS_CALL: call_graph,
    ipu_patch_table.MODEL_OF_STEP: call_graph,
    patch_table.GRAPH_RUN: call_graph,
    patch_table.REMAT: rematerialize,
    patch_table.BATCH_MOMENTS: normalize,
    patch_table.NODE_INIT: lambda: keras.layers.ReLU()(keras.Input((1,))),
    patch_table.OPERATION_INIT: keras.layers.ReLU,
    patch_table.COND: branch,
    patch_table.REDUCE_LOSS: lambda: keras.losses.MeanSquaredError()(np.ones((2, 2)), 0.0),
    patch_table.COND_OF_OPTIMIZERS: scale_loss,
    patch_table.OPTIMIZER_INIT: keras.optimizers.SGD,
    ipu_patch_table.MODEL_FROM_CONFIG: lambda: keras.Model.from_config(
        keras.Model(x := keras.Input((1,)), keras.layers.Identity()(x)).get_config()
    ),
    ipu_patch_table.SEQUENTIAL_FROM_CONFIG: lambda: keras.Sequential.from_config(
        compiled().get_config()
    ),
    ipu_patch_table.APPLY_GRADIENTS: apply_gradients,
    ipu_patch_table.DATA_ADAPTER: lambda: run("predict"),
    ipu_patch_table.ARRAY_NUMPY: lambda: jnp.ones(()).numpy(),  # type: ignore[attr-defined]
    patch_table.VARIABLE_INIT: lambda: keras.Variable("zeros", (2,)),
    patch_table.VARIABLE_LATER: build_by_run,
    patch_table.VARIABLE_ASSIGN: lambda: keras.Variable(1.0).assign(2.0),
    patch_table.CALL_WITHOUT_VALUES: call_graph,
    patch_table.TAKE_GRADIENTS: lambda: jax.grad(jnp.sin)(1.0),
    patch_table.EXIT: end,
    patch_table.EXCEPTHOOK: lambda: sys.excepthook(ValueError, ValueError(), None),
}
# Their changes are to no single function, and their tests are in the file that is named.
ELSEWHERE = {
    patch_table.EPOCH_ITERATOR: "test_keras_loops.py",
    ipu_patch_table.LAZY_TENSORFLOW: "below",
    patch_table.LOADING_FAILURE: "tests/strategy/test_saved_options.py",
    ipu_patch_table.META_PATH: "below",
    ipu_patch_table.SCRIPT_MODULES: "tests/millrace_ipu/porting/test_serve.py",
    ipu_patch_table.APPLY: "tests/millrace_ipu/ipu/test_f37_f38_replicas.py",
    ipu_patch_table.OLD_ATTRIBUTES: "tests/millrace_ipu/porting/test_idioms_serve.py",
    ipu_patch_table.TENSOR_BOARD: "tests/millrace_ipu/porting/test_idioms_summary.py",
    ipu_patch_table.KERAS2_CALLS: "tests/millrace_ipu/porting/test_idioms_keras2.py",
    ipu_patch_table.IPU_ATTRIBUTE: "tests/millrace_ipu/porting/test_idioms_serve.py",
    ipu_patch_table.TENSORFLOW_ITER: "tests/tensorflow, where TensorFlow is installed",
    patch_table.INTERRUPTS: "tests/test_interrupts.py",
    patch_table.TERMINATION: "tests/resuming/test_lost_files.py",
    patch_table.COLLECTOR: "tests/test_collector.py",
    patch_table.COMPILATION_CACHE: "tests/cache/test_cache.py",
}


@pytest.fixture(autouse=True)
def clean():
    """No patches of functions, as in a process without millrace; they come back after the test."""
    before = dict(patches._undo)
    places = [(p.owner(), p.attribute) for p, _ in before if p.owner is not None and p.attribute]
    values = [vars(owner)[attribute] for owner, attribute in places]
    holders, replacements = set(patches._holders), dict(patches._replacements)
    states = [(place, {**place.wrappers}, place.installed) for place in replacements.values()]
    for patch, key in before:
        if patch.owner is not None and patch.attribute:
            take_out(patch, key)
    patches._holders.clear()
    yield
    for (owner, attribute), value in zip(places, values, strict=True):
        setattr(owner, attribute, value)
    patches._holders.update(holders)
    patches._undo.clear()
    patches._undo.update(before)
    patches._replacements.clear()
    patches._replacements.update(replacements)
    for place, wrappers, installed in states:
        place.wrappers, place.installed = wrappers, installed


def test_every_patch_is_tried_here_or_elsewhere():
    assert set(USES) | set(ELSEWHERE) == set(PATCHES)
    assert not set(USES) & set(ELSEWHERE)
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)


@pytest.mark.parametrize("patch", USES, ids=lambda patch: patch.name)
def test_what_is_patched_is_what_is_called(patch):
    before = vars(patch.owner()).get(patch.attribute)
    calls = []

    def wrapper(original):
        def spy(*args, **kwargs):
            calls.append(args)
            return original(*args, **kwargs) if original else None

        return spy

    replace(patch, wrapper)
    try:
        assert patch in patches_in()
        USES[patch]()
    finally:
        take_out(patch)
    assert calls
    assert vars(patch.owner()).get(patch.attribute) is before
    assert patch not in patches_in()


@pytest.mark.parametrize("patch", [p for p in PATCHES if p.parameters], ids=lambda p: p.name)
def test_a_name_that_takes_other_arguments_is_an_error(patch, monkeypatch):
    monkeypatch.setattr(patch.owner(), patch.attribute, lambda something, other: None)
    with pytest.raises(MillraceError, match=r"takes other arguments .*\(something, other\)"):
        replace(patch, lambda original: original)
    assert patch not in patches_in()


def test_a_name_that_is_gone_is_an_error():
    patch = Patch("keras.nothing", "", While.MODELS, lambda: keras, "nothing", ("self",))
    with pytest.raises(MillraceError, match=rf"keras {keras.__version__} on jax .* has no keras.n"):
        replace(patch, lambda original: original)


def doubling(original):
    return lambda *args: 2 * original(*args)


def test_what_was_inherited_is_inherited_again():
    class Above:
        def three(self):
            return 3

    class Below(Above):
        pass

    patch = Patch("Below.three", "", While.LOOPS, lambda: Below, "three", ("self",))
    replace(patch, doubling)
    replace(patch, doubling)  # once is enough
    assert (Above().three(), Below().three()) == (3, 6)
    take_out(patch)
    take_out(patch)
    assert Below().three() == 3
    assert "three" not in vars(Below)


def test_a_wrapper_of_another_library_stays():
    library = SimpleNamespace(three=lambda: 3)
    patch = Patch("three", "", While.LOOPS, lambda: library, "three")
    replace(patch, doubling)
    ours = library.three
    library.three = theirs = lambda: ours() + 1
    take_out(patch)
    assert library.three is theirs
    assert library.three() == 7


def test_what_a_reloaded_module_has_put_in_is_not_wrapped_again():
    library = SimpleNamespace(three=(three := lambda: 3))
    patch = Patch("three", "", While.LOOPS, lambda: library, "three")
    replace(patch, doubling)
    patches._undo.clear()  # as in a module that was imported anew
    replace(patch, doubling)
    assert library.three() == 6
    take_out(patch)
    assert library.three is three


def test_patches_for_models_go_with_the_last_holder():
    library = SimpleNamespace(three=(three := lambda: 3))
    patch = Patch("three", "", While.MODELS, lambda: library, "three")
    other = Patch("four", "", While.LOOPS, lambda: library, "four")
    patches.hold("a")
    with patches.held():
        replace(patch, doubling)
        replace(other, lambda original: three)
        patches.release("a")
        assert library.three is not three
    assert library.three is three
    assert library.four is three
    patches.release("a")  # a second time does nothing


def test_tensorflow_is_keras_own_again_after_a_script():
    lazy = ipu_patch_table.LAZY_TENSORFLOW.owner()
    take_out(ipu_patch_table.LAZY_TENSORFLOW)
    before = lazy.module, lazy._available
    show_tensorflow(sys)
    show_tensorflow(None)
    assert not lazy.available
    show_own_tensorflow()
    assert (lazy.module, lazy._available) == before


def test_names_of_modules_are_served_until_they_are_taken_out():
    finders = list(sys.meta_path)
    serve({"not_a_module": "json"}, "a test")
    assert importlib.import_module("not_a_module").loads("1") == 1
    stop_serving("a test")
    assert sys.meta_path == finders
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_a_module")


def as_markdown(table):
    lines = ["| patched | why | when |", "|---|---|---|"]
    lines += [f"| `{each.name}` | {each.why} | {each.period} |" for each in table]
    return "\n".join(lines) + "\n"


def test_the_page_lists_them():
    page = DOCS.read_text()
    for table in (as_markdown(patch_table.PATCHES), as_markdown(ipu_patch_table.PATCHES)):
        assert table in page, f"docs/patches.md must have this table:\n{table}"


def adding(original):
    return lambda *args: 10 + original(*args)


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_patches_in_one_place_come_out_in_any_order(first_out):
    library = SimpleNamespace(three=(three := lambda: 3))
    pair = [
        Patch("three", why, While.LOOPS, lambda: library, "three") for why in ("inner", "outer")
    ]
    replace(pair[0], doubling)
    replace(pair[1], adding)
    assert library.three() == 16
    take_out(pair[first_out])
    assert library.three() == (13, 6)[first_out]
    replace(pair[first_out], doubling)
    assert library.three() == (26, 12)[first_out]
    take_out(pair[0])
    take_out(pair[1])
    assert library.three is three


def test_one_patch_of_several_places():
    library = SimpleNamespace(three=(three := lambda: 3), four=(four := lambda: 4))
    patch = Patch("three, four", "", While.LOOPS)
    for name in ("three", "four", "three"):
        replace(patch, doubling, library, name)
    assert (library.three(), library.four()) == (6, 8)
    take_out(patch)
    assert (library.three, library.four) == (three, four)
