"""The floating-point operations of a program's operations, as XLA counts them.

One for each element that is computed, two for each product that a dot or a convolution adds up, and
none for moving, copying or broadcasting. Operations such as exp and tanh take several each, which
depends on the machine; XLA counts them apart, as transcendentals, and so they are none here.

XLA's own sums are for whole programs (`cost_analysis`); the tests compare both. Source of the
rules: `HloCostAnalysis` of XLA.
"""

import math

from millrace.run.memory.hlo_proto import (
    Instruction,
    KernelAxis,
    Module,
    contracted_dimensions,
    convolution_of,
    custom_call_target,
    element_shapes,
    kernel_axes,
    transform_lengths,
)
from millrace.tools.operations.shapes import dimensions, elements, result_elements

_PER_ELEMENT = """
    abs add and bitcast-convert ceil clamp compare complex convert count-leading-zeros divide
    floor imag is-finite maximum minimum multiply negate not or popcnt real reduce-precision
    remainder round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic
    shift-right-logical sign stochastic-convert subtract xor
"""
PER_ELEMENT = frozenset(_PER_ELEMENT.split())
_COLLECTIVE_SUMS = ("all-reduce", "all-reduce-start", "reduce-scatter")
_CUDNN = "__cudnn$conv"
_PER_PRODUCT = 2  # a multiplication and an addition


class FlopCounter:
    """Counts the FLOPs of a module's operations."""

    def __init__(self, module: Module):
        self._module = module
        self._of_computations: dict[int, float] = {}

    def of(self, instruction: Instruction) -> float:
        """Returns the FLOPs of an operation; of a fusion those of all that it contains.

        Loops, calls and conditionals have none of their own.
        """
        opcode = instruction.opcode
        if opcode in PER_ELEMENT:
            return float(elements(instruction.shape))
        if opcode == "dot":
            return self._dot(instruction)
        if opcode == "convolution":
            return self._convolution(instruction)
        if opcode == "fusion":
            return sum(map(self.of_computation, instruction.called))
        if opcode in ("reduce", "reduce-window", "scatter", "select-and-scatter", "map"):
            return self._applied(instruction)
        if opcode == "sort":
            count = self._elements_of_operand(instruction, 0)
            return float(count * _doublings(count))
        if opcode == "custom-call" and custom_call_target(instruction).startswith(_CUDNN):
            return self._convolution_of_cudnn(instruction)
        if opcode == "fft":
            factor = math.prod(each.bit_length() - 1 for each in transform_lengths(instruction))
            return _PER_PRODUCT * 4.0 * factor * self._elements_of_operand(instruction, 0)
        if opcode in _COLLECTIVE_SUMS:
            return float(result_elements(instruction))
        return 0.0

    def of_computation(self, number: int) -> float:
        """Returns the FLOPs of all operations of a computation, such as the body of a fusion."""
        if number not in self._of_computations:
            computation = self._module.computations[number]
            self._of_computations[number] = sum(map(self.of, computation.instructions))
        return self._of_computations[number]

    def _operand(self, instruction: Instruction, index: int) -> Instruction:
        return self._module.instructions[instruction.operands[index]]

    def _elements_of_operand(self, instruction: Instruction, index: int) -> int:
        return elements(self._operand(instruction, index).shape)

    def _dot(self, instruction: Instruction) -> float:
        first = dimensions(self._operand(instruction, 0).shape)
        width = math.prod(first[axis] for axis in contracted_dimensions(instruction))
        return float(_PER_PRODUCT * elements(instruction.shape) * width)

    def _convolution(self, instruction: Instruction) -> float:
        numbers, batch_groups = convolution_of(instruction)
        inputs = dimensions(self._operand(instruction, 0).shape)
        kernel = dimensions(self._operand(instruction, 1).shape)
        output = dimensions(instruction.shape)
        products = kernel[numbers.kernel_input_feature] * output[numbers.output_feature]
        products *= inputs[numbers.input_batch] // batch_groups
        axes = zip(
            kernel_axes(instruction), numbers.input_spatial, numbers.output_spatial, strict=True
        )
        for axis, input_axis, output_axis in axes:
            products *= _positions(axis, inputs[input_axis], output[output_axis])
        return float(_PER_PRODUCT * products)

    def _convolution_of_cudnn(self, instruction: Instruction) -> float:
        """Returns the FLOPs of a convolution of cuDNN, or of one of its gradients.

        Each has an input, a kernel and an output, one of which is its result, and takes as many
        products. Padding counts, as it does in cuDNN.
        """
        numbers, _ = convolution_of(instruction)
        first, second = (dimensions(self._operand(instruction, k).shape) for k in (0, 1))
        result = dimensions(element_shapes(instruction)[0])
        target = custom_call_target(instruction).removeprefix(_CUDNN)
        kernel, output = second, result
        if target.startswith("BackwardInput"):
            output = first
        elif target.startswith("BackwardFilter"):
            kernel, output = result, second
        positions = math.prod(output) // output[numbers.output_feature]
        return float(_PER_PRODUCT * positions * math.prod(kernel))

    def _applied(self, instruction: Instruction) -> float:
        """Returns the FLOPs of an operation that applies a function to pairs of elements."""
        opcode = instruction.opcode
        if opcode == "map":
            return self.of_computation(instruction.called[0]) * elements(instruction.shape)
        if opcode == "scatter":
            updates = self._operand(instruction, -1)
            return self.of_computation(instruction.called[0]) * elements(updates.shape)
        if opcode == "reduce":
            results = elements(element_shapes(instruction)[0])
            pairs = self._elements_of_operand(instruction, 0) - results
            return self.of_computation(instruction.called[0]) * pairs
        in_window = math.prod(each.size for each in kernel_axes(instruction))
        if opcode == "reduce-window":
            results = elements(element_shapes(instruction)[0])
            return self.of_computation(instruction.called[0]) * results * (in_window - 1)
        source = self._elements_of_operand(instruction, 1)
        select, scatter = map(self.of_computation, instruction.called[:2])
        return source * ((in_window - 1) * select + scatter)


def _positions(axis: KernelAxis, input_length: int, output_length: int) -> int:
    """Returns the pairs of a kernel element and an output element whose input is no padding."""
    count = 0
    for element in range(axis.size):
        begin = element * axis.dilation - axis.padding_low
        if axis.base_dilation == 1:
            # Those with 0 <= begin + output * stride < input_length.
            first = max(0, -(begin // axis.stride))
            last = min(output_length - 1, (input_length - 1 - begin) // axis.stride)
            count += max(0, last - first + 1)
            continue
        for output in range(output_length):
            position, rest = divmod(begin + output * axis.stride, axis.base_dilation)
            count += not rest and 0 <= position < input_length
    return count


def _doublings(number: int) -> int:
    return max(number - 1, 0).bit_length()
