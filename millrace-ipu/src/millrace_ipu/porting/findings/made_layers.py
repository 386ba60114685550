"""Layers that a traced function makes, as programs of TensorFlow 1 do: their weights are lost.

def stage(x):                                           also the body of a loop, and the function
    return keras.layers.Dense(3)(x)                     of ipu_compiler.compile
pipelining_ops.pipeline([stage, ...], ...)
"""

import ast
from collections.abc import Iterator, Sequence

from millrace_ipu.porting.findings.tapes import Resolve
from millrace_ipu.porting.names import within

# What to write in place of such a layer.
LAYER = "a layer that is made once, outside of the function, and called in it"
_TRACE = {
    "ipu.ops.pipelining_ops.pipeline": ("computational_stages", 0),
    "ipu.pipelining_ops.pipeline": ("computational_stages", 0),
    "ipu.ipu_compiler.compile": ("computation", 0),
    "ipu.loops.repeat": ("body", 1),
    "ipu.loops.while_loop": ("body", 1),
}
_WITH_WEIGHTS = {
    "BatchNormalization", "Bidirectional", "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose",
    "Conv3D", "Conv3DTranspose", "ConvLSTM2D", "Dense", "DepthwiseConv2D", "EinsumDense",
    "Embedding", "GRU", "GroupNormalization", "LSTM", "LayerNormalization", "MultiHeadAttention",
    "PReLU", "SeparableConv2D", "SimpleRNN",
}  # fmt: skip


def traced_functions(files: Sequence[tuple[ast.AST, Resolve]]) -> set[str]:
    """Returns the names of the functions that stages and loops of a program consist of.

    Args:
        files: the syntax tree of each file of a program, with the `resolve` of its names.
    """
    names: set[str] = set()
    for tree, resolve in files:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := resolve(node.func)) in _TRACE:
                keyword, position = _TRACE[name]
                given = [k.value for k in node.keywords if k.arg == keyword]
                functions = (given or node.args[position : position + 1] or [ast.Tuple([])])[0]
                parts = (
                    functions.elts if isinstance(functions, ast.List | ast.Tuple) else [functions]
                )
                names |= {part.id for part in parts if isinstance(part, ast.Name)}
    return names


def made_layers(
    tree: ast.AST, resolve: Resolve, functions: set[str]
) -> Iterator[tuple[ast.Call, str]]:
    """Yields the calls that make a layer with weights and call it at once, and the layer's name.

    Args:
        tree: syntax tree of a file.
        resolve: returns the dotted name that an expression stands for.
        functions: the names of the functions to look in.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name not in functions:
            continue
        for call in within(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Call):
                module, _, layer = (resolve(call.func.func) or "").rpartition(".")
                if module == "keras.layers" and layer in _WITH_WEIGHTS:
                    yield call, layer
