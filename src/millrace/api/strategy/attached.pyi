"""What type checkers see of attached models. tests/typing/attached_stub.py writes it."""

# ruff: noqa: E501 - one line for each argument: editors wrap them
# fmt: off

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras

from millrace.base.options import MetricReduction, RecomputationMode, Reduction
from millrace.run.pipelines.assignment.lists import AnyAssignment
from millrace.run.precompile.described_batch import BatchDescription

class Attached(keras.Model):
    """An attached model: a `keras.Model`, of any class, with the methods that attachment adds.

    An argument of a setter that is left out, or None, keeps the value in force. `help()` of a
    method names its errors, too.
    """

    def set_gradient_accumulation_options(
        self,
        *,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: Literal["auto", "mean", "sum", "running_mean", "sum_then_mean", "mean_then_sum", "running_mean_then_sum"] | Reduction | None = None,
        dtype: str | Callable[[Any], str | None] | None = None,
        micro_batch: int | Literal["auto", "whole"] | None = None,
        synchronized_batch_statistics: bool | None = None,
        offload_weight_update_variables: bool | Literal["auto"] | None = None,
        offload_gradient_accumulation_buffers: bool | Literal["auto"] | None = None,
    ) -> None:
        """Lets several steps make one weight update.

        Args:
            gradient_accumulation_steps_per_replica: steps (micro-batches) in one update; 1 turns accumulation off. Default: `1`.
            gradient_accumulation_reduction_method: `"auto"` weighs each micro-batch by what its loss divides by (tokens of a mask, a sum of sample weights, rows), so that the update equals that of one big batch; `"mean"` weighs by rows alone; `"sum"` adds the gradients of the micro-batches; `"running_mean"` is a mean at any time, so that float16 never has to hold a sum. `"mean_then_sum"` and `"running_mean_then_sum"` are means over the micro-batches of a replica, added up over replicas; `"sum_then_mean"` is the mean over replicas of their sums. Default: `"auto"`.
            dtype: of the accumulators: a name is for all, a function of the variable chooses for each. Default: `"auto"`: each variable's own.
            micro_batch: rows that a step computes at a time, in the memory of so many: it adds up their gradients, and losses and updates stay those of the whole batch. `"auto"` takes the most that fit; `"whole"` does not divide batches. Default: `"whole"`.
            synchronized_batch_statistics: True normalizes in `BatchNormalization` by the mean and variance of all micro-batches and replicas of an update, as one big batch does, and takes the memory of one: micro-batches are computed together (docs/gradient_accumulation.md). Default: `False`.
            offload_weight_update_variables: True keeps the optimizer's values in host memory between updates. Default: `"auto"`: where the device has such memory, for a pipeline or an update of several steps.
            offload_gradient_accumulation_buffers: True keeps accumulated gradients there between micro-batches. Default: `"auto"`: with `batch_serialization_iterations`, where the device has such memory.
        """

    def set_infeed_queue_options(self, *, prefetch_depth: int | None = None, max_block_bytes: int | None = None, max_resident_bytes: int | None = None, max_wait_seconds: float | Literal["auto"] | None = None) -> None:
        """Chooses how data reaches the device. Results do not depend on it.

        Args:
            prefetch_depth: blocks prepared ahead of the one in use; at least 1. Default: `2`.
            max_block_bytes: bytes of one block of stacked batches, on one device. An execution of more steps than fit runs from several blocks. Default: 32 MiB.
            max_resident_bytes: arrays of at most this many bytes in all stay on the device and are shuffled there; 0 keeps none. Default: 256 MiB.
            max_wait_seconds: longest wait for one batch of the data set; then a `DataError` shows the line where the data set hangs. Default: `"auto"`: no limit, and a warning after 60 seconds.
        """

    def set_asynchronous_callbacks(self, asynchronous: bool | None = None, *, stop_within: int | Literal["auto"] | None = None) -> None:
        """Delivers batch callbacks for every step while an execution runs, or once per execution.

        Takes effect at the next fit, evaluate or predict. Compiled programs stay; those that return
        every step's logs are compiled when they are first needed.

        Args:
            asynchronous: True calls `on_train_batch_end` and the like once per step, in order, while later steps of the execution run. A callback that reads weights then waits for the execution. False ends `stop_within`. Default: `False`.
            stop_within: steps after which `fit` has stopped, at most, once a callback sets `model.stop_training`; whole updates. 1 stops with the state of that very step. Longer executions run in pieces of this many steps. Default: `"auto"`: after the execution.
        """

    def set_replication_options(
        self,
        *,
        synchronized_batch_statistics: bool | None = None,
        replicated_metric_reduction_method: Literal["mean", "sum", "list", "none"] | MetricReduction | None = None,
        replicated_optimizer_state_sharding: bool | None = None,
        replicated_weight_sharding: bool | None = None,
        offload_weight_update_variables: bool | Literal["auto"] | None = None,
        offload_weights: bool | Literal["auto"] | None = None,
    ) -> None:
        """Chooses the metrics that replicas report, and the values that they share out.

        A value whose axes the replicas cannot share out equally stays whole.

        Args:
            synchronized_batch_statistics: True normalizes in `BatchNormalization` by the mean and variance of all micro-batches and replicas of an update, as one big batch does, and takes the memory of one: micro-batches are computed together (docs/gradient_accumulation.md). Default: `False`.
            replicated_metric_reduction_method: `"mean"`: metrics over the batches of all replicas; `"sum"` of the replicas' values; `"list"` of them; `"none"`: the last replica's value. Default: `"mean"`.
            replicated_optimizer_state_sharding: True keeps an equal part of the optimizer's values on the devices of each replica, which updates the weights of that part: ZeRO-1. Default: `False`.
            replicated_weight_sharding: True keeps an equal part of the weights there, too, and gathers them where the micro-batches of an update need them: ZeRO-3. Default: `False`.
            offload_weight_update_variables: True keeps the optimizer's values in host memory between updates. Default: `"auto"`: where the device has such memory, for a pipeline or an update of several steps.
            offload_weights: True keeps each replica's part of weights that replicas share out there while no micro-batch needs them. Default: `"auto"`: off.
        """

    def set_recomputation_options(self, *, mode: Literal["none", "auto", "recompute_then_backpropagate", "recompute_and_backpropagate_interleaved"] | RecomputationMode | None = "auto", budget: int | float | str | None = None) -> None:
        """Makes backward compute values again instead of keeping them from forward.

        Losses, weights and dropout masks stay those of plain training. A mode and a budget exclude
        each other: the one that is set last is in force. A call that names no mode sets `"auto"`, or
        the budget that it names; `mode=None` keeps the one in force.

        Args:
            mode: `"none"` computes nothing again. `"recompute_and_backpropagate_interleaved"` computes again, segment by segment, the values between two `RecomputationCheckpoint` layers. `"recompute_then_backpropagate"` computes a pipeline stage again as a whole. `"auto"` is the former for a model in one piece and for the schedule `"sequential"`, and the latter for all others. It ends a budget. A model has `"none"` until this is called; left out here, it is `"auto"`.
            budget: the peak that training may reach on a device: bytes, a text such as `"1.5GB"`, or a share above 0 and up to 1 of what training takes without recomputation. millrace then chooses what is kept, for the fewest additional FLOPs. A `mode` ends it. Default: none.
        """

    def set_pipelining_options(
        self,
        *,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: Sequence[int] | Literal["auto"] | None = None,
        gradient_accumulation_reduction_method: Literal["auto", "mean", "sum", "running_mean", "sum_then_mean", "mean_then_sum", "running_mean_then_sum"] | Reduction | None = None,
        pipeline_schedule: str | Path | Callable[[int, int], Any] | None = None,
        gradient_accumulation_dtype: str | Callable[[Any], str | None] | None = None,
        forward_propagation_stages_compiler_options: Sequence[Mapping[str, Any]] | Literal["auto"] | None = None,
        backward_propagation_stages_compiler_options: Sequence[Mapping[str, Any]] | Literal["auto"] | None = None,
        weight_update_compiler_options: Mapping[str, Any] | Literal["auto"] | None = None,
        batch_serialization_iterations: int | None = None,
        replicated_optimizer_state_sharding: bool | None = None,
        replicated_weight_sharding: bool | None = None,
        recomputation_mode: Literal["none", "auto", "recompute_then_backpropagate", "recompute_and_backpropagate_interleaved"] | RecomputationMode | None = None,
        offload_weight_update_variables: bool | Literal["auto"] | None = None,
        offload_activations: bool | Literal["auto"] | None = None,
        offload_gradient_accumulation_buffers: bool | Literal["auto"] | None = None,
        offload_weights: bool | Literal["auto"] | None = None,
    ) -> None:
        """Chooses how the stages of a pipelined model run. The numbers do not depend on it.

        Args:
            gradient_accumulation_steps_per_replica: steps (micro-batches) in one update. `fit` of a pipeline needs it; `evaluate` and `predict` do not. Default: none.
            device_mapping: for each stage the number of its device within a replica. Stages may share devices. Default: `"auto"`: stage i on device i; with `batch_serialization_iterations` all on device 0; with `"zb_v"`, `"v_half"` and `"v_min"` out and back, as in `[0, 1, 1, 0]`.
            gradient_accumulation_reduction_method: as in `set_gradient_accumulation_options`. Default: `"auto"`.
            pipeline_schedule: `"1f1b"`, `"1f1b_slack"`, `"grouped"`, `"gpipe"`, `"sequential"`, `"looped"`, `"zero_bubble"`, `"zb_v"`, `"v_half"`, `"v_min"`, a function of the numbers of stages and of micro-batches, the schedule as text, or the path of such text (docs/schedules.md). Default: `"auto"`: `"1f1b"`; over processes on CPUs `"1f1b_slack"`; with `batch_serialization_iterations` `"sequential"`.
            gradient_accumulation_dtype: the `dtype` of `set_gradient_accumulation_options`. Default: `"auto"`: each variable's own.
            forward_propagation_stages_compiler_options: for each stage a dict of options of XLA, for its forward passes; `[]` for none. Default: `"auto"`: none.
            backward_propagation_stages_compiler_options: the same for its backward passes. Default: `"auto"`: none.
            weight_update_compiler_options: a dict of options of XLA, for the weight update; `{}` for none. Default: `"auto"`: none.
            batch_serialization_iterations: micro-batches that a stage runs before the next stage starts. An update then has that many times `gradient_accumulation_steps_per_replica`. More than 1 needs all stages on one device, where they are unless mapped otherwise. Default: `1`.
            replicated_optimizer_state_sharding: True keeps an equal part of the optimizer's values on the devices of each replica, which updates the weights of that part: ZeRO-1. Default: `False`.
            replicated_weight_sharding: True keeps an equal part of the weights there, too, and gathers them where the micro-batches of an update need them: ZeRO-3. Default: `False`.
            recomputation_mode: `"none"` computes nothing again. `"recompute_and_backpropagate_interleaved"` computes again, segment by segment, the values between two `RecomputationCheckpoint` layers. `"recompute_then_backpropagate"` computes a pipeline stage again as a whole. `"auto"` is the former for a model in one piece and for the schedule `"sequential"`, and the latter for all others. It ends a budget. Default: `"none"`.
            offload_weight_update_variables: True keeps the optimizer's values in host memory between updates. Default: `"auto"`: where the device has such memory, for a pipeline or an update of several steps.
            offload_activations: True keeps activations there until their backward. Default: `"auto"`: with `batch_serialization_iterations`, where the device has such memory.
            offload_gradient_accumulation_buffers: True keeps accumulated gradients there between micro-batches. Default: `"auto"`: with `batch_serialization_iterations`, where the device has such memory.
            offload_weights: True keeps each replica's part of weights that replicas share out there while no micro-batch needs them. Default: `"auto"`: off.
        """

    def precompile(self, batch_spec: BatchDescription, *, steps_per_epoch: int | None = None) -> None:
        """Compiles the programs that fit, evaluate and predict will run on such batches.

        Nothing is run. All programs are compiled at the same time, those of all stages included, and
        kept in the cache on disk if there is one. The model gets the variables that `fit` would make:
        those of its metrics and its optimizer.

        Args:
            batch_spec: one micro-batch as `fit` sees it, `(x, y)` or `(x, y, sample_weight)`, of arrays, `jax.ShapeDtypeStruct`s or pairs of shape and dtype. The values do not matter. For x alone only predict is compiled.
            steps_per_epoch: batches in an epoch, which is the most that a block of arrays that stay on the device holds; None cuts them into blocks of one execution.
        """

    def set_pipeline_stage_assignment(self, assignment: Literal["auto"] | list[int] | list[AnyAssignment], *, num_stages: int | None = None, batch_spec: BatchDescription | None = None) -> None:
        """Chooses the stage of each layer call.

        Args:
            assignment: for a Sequential a list of whole numbers, one for each layer; for any model the list of `get_pipeline_stage_assignment`, with stages set. `"auto"` balances the FLOPs of the calls over `num_stages`: at once where `keras.Input` declares all lengths but the rows, otherwise for the first batch of `fit`.
            num_stages: of `"auto"`.
            batch_spec: of `"auto"`: a batch for which it balances the FLOPs at once, as of `precompile`.
        """

    def get_pipeline_stage_assignment(self) -> list[AnyAssignment]:
        """Returns an object for each layer call, in execution order, with its stage or None.

        Set `pipeline_stage` of the objects, and give the list to `set_pipeline_stage_assignment`.
        """

    def reset_pipeline_stage_assignment(self) -> None:
        """Removes the pipeline stages of the model."""

    def print_pipeline_stage_assignment_summary(self, line_length: int | None = None, print_fn: Callable[[str], object] | None = None) -> None:
        """Prints the stage of each layer call, and the parameters and FLOPs of each stage.

        What the first batch of `fit` will decide is shown as "at fit".

        Args:
            line_length: characters of a line.
            print_fn: called with each line; None is `print`.
        """
