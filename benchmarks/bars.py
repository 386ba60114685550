"""Text of the benchmark pages: the subject of each benchmark, and the reason for each missed bar.

Figures and bars come from the result files and are not repeated here. `page.py` fails if a missed
bar has no reason, or if a reason belongs to a bar that is met.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Section:
    """One script on the page."""

    title: str
    text: str
    page: str = ""  # page of the feature in docs/
    misses: dict[str, str] = field(default_factory=dict)  # regex of names -> reason for the miss
    is_grid: bool = False  # a figure `row: column` is a cell


@dataclass(frozen=True)
class Claim:
    """One row of the table in README.

    `text` has a `{}` for each of `names`, in order: the lowest and the highest figure of `scripts`
    whose whole name matches. After "1 / ", a time is shown as a speed.
    """

    name: str
    page: str
    peer: str
    text: str
    scripts: tuple[str, ...]
    names: tuple[str, ...]


SECTIONS = {
    "peers": Section(
        "Against the peers",
        "The same work in one run: `make peers` sets up the other environments first. The columns "
        "after that of millrace are how many times as long a peer takes; **bold**: the peer is "
        "faster. Each side is a process that may use both cores, with float32, the same batches "
        "of data in the memory of Python, Adam, and its own best setting: steps per execution of "
        "millrace (32, all), of Keras 3.15 (1, 8, 32, 128) and of Keras 3.16 (1, 32, 128), eager "
        "or compiled on torch. *jax, steps* is a handwritten step that is called for each batch, "
        "*jax, scan* one scan over an epoch. All sides `fit` with shuffling, as Keras does. Before "
        "the timing, all train for an epoch from the same weights, evaluate and predict: their "
        "results must agree to 1e-3, and the file says how far they differ. Models: those below, "
        "and a pre-norm transformer block of 64 with 4 heads on 32 positions, in batches of 16. An "
        "epoch has 2000 batches (tiny), 1000 (mlp, lstm) or 400. The pipelines have two "
        "stages, one in each of two processes with a core of its own, as in their section below.",
        "steps_per_execution.md",
        {
            r"tiny, .*: jax, scan": "The scan has no call of Keras around it. From epochs of 500 "
            "and 2000 steps, timed apart: a step takes 2.43 us here and 2.72 us in the scan (fit), "
            "0.73 and 0.76 us (evaluate), 0.32 and 0.62 us (predict); a call takes 1.8, 1.6 and "
            "1.1 ms beside its steps, and 0.7, 0.6 and 0.4 ms in the scan.",
            r"(mlp|lstm|convnet), .*: jax, scan": "The same: steps are faster here, and a call "
            "takes longer. From epochs of two lengths, a step of evaluate and predict takes 14.7 "
            "and 15.1 us here and 16.2 and 16.3 us in the scan (mlp), 32.4 and 30.4 against 33.5 "
            "and 32.9 us (lstm), 228 and 225 against 246 and 243 us (convnet); a call takes 2.9 to "
            "5.7 ms beside its steps, and 0.3 to 1.5 ms in the scan. 1.2 and 0.8 ms are what "
            "a call with a single batch takes, and an evaluation of the lstm calls its first "
            "program after 2.5 ms, with the first part of the data.",
            r"transformer 256, 16 .*": "10 to 18 % of an update are page faults: 57,000 of them, "
            "80 ms of system time, in the process of the second stage, because glibc returns the "
            "memory that a task has freed to the system. With larger thresholds in the "
            "environment (docs/processes.md) the ratio is 0.95x on the same machine, and the "
            "processes keep more memory. The rest is that of the next row.",
            r"transformer 256, 32 .*": "A stage alone takes 1.07x the time of torch's, for the "
            "reasons in the section of these pipelines. With that, an update here reaches 0.87 of "
            "its ideal, and torch's 0.90.",
        },
        is_grid=True,
    ),
    "steps_per_execution": Section(
        "The training loop",
        "Time per step inside `fit`, after compilation. Plain Keras runs at its own best "
        "`steps_per_execution`. The handwritten JAX is the faster of a scan and unrolled steps: "
        "no Keras, no callbacks, and batches stacked beforehand, whereas `fit` shuffles. "
        "Models: tiny has 2 dense layers of 8 and batches of 8; mlp has 3 dense layers of 128 and "
        "batches of 32; lstm has 16 units over 16 time steps and batches of 16; convnet has 2 "
        "convolutions on 16 x 16 and batches of 32. *next* is Keras 3.16, which runs "
        "`steps_per_execution` as its own scan.",
        "steps_per_execution.md",
        {
            r"(tiny|mlp): millrace / jax": "`fit` shuffles the rows of every epoch, and the "
            "handwritten loop does not. The row below compares with a loop that does.",
            r"(mlp|convnet): keras / millrace": "Most of the step is computation, which is the "
            "same in Keras: handwritten JAX, which does not shuffle, gains 1.27x on the mlp and "
            "1.23x on the convnet, by the medians of the times.",
            r"convnet: millrace / jax": "The rounds of this run lie between 1.04x and 1.41x, on "
            "two cores that other machines share. The run of 2026-11-21, on another machine, gave "
            "1.04x (1.01-1.07).",
        },
    ),
    "calls": Section(
        "Short calls",
        "What the scope costs where no long compiled loop runs: the same model of 2 dense layers "
        "in a scope and in plain Keras, with one step per execution, batches of 32 rows and "
        "verbose=0. Each figure is the time of millrace over that of plain Keras, both of which "
        "spend nearly all of it in Python. Two replicas take 16 rows each, so that an update has "
        "32 rows, too.",
        "strategy.md",
        {
            r"predict_on_batch: .*": "Some 40 us of Python: Ctrl-C is held back, one thread has "
            "the model, and state, batch and options of JAX are compared with those of the call "
            "before. A model of 100 layers takes 0.66x the time of plain Keras.",
        },
    ),
    "pipeline_tax": Section(
        "Pipelines: the cost of cutting a model",
        "All stages on one CPU core, compared with the same updates of the model in one piece: 8 "
        "dense layers, 16 micro-batches of 64 rows per update. Several devices would share this "
        "work. The last rows are the bytes that each schedule keeps in flight, and the host's time "
        "per task.",
        "pipelines.md",
    ),
    "pipeline_processes": Section(
        "Pipelines over two processes",
        "Two stages in two processes, one CPU core each, on one machine. The ideal time is that "
        "of a stage alone plus the unavoidable idle time of the schedule. The time of an update "
        "is the difference between fits with many and with few updates; the cost of a fit is what "
        "remains. The peer is `torch.distributed.pipelining` (Schedule1F1B over gloo) on the same "
        "stages.",
        "processes.md",
        {
            r".*: share of ideal": "A task has trashed the caches of its core, so that each line "
            "of Python after it takes about a microsecond, and JAX's call of a program 60 to 90, "
            "where a loop of such calls takes 20 each. Forward and backward as one program gained "
            "nothing. Of an update, 2.5 % (tanh) and 5 % (transformer) would be saved by memory "
            "that processes of one machine share, measured before it was removed.",
            r".*: millrace / torch": "The bars were set on an AMD machine, with memory shared by "
            "the processes of one machine. The stage of the transformer alone takes 1.07x the time "
            "of torch's: on one core, its attention takes 1.19 ms in JAX and 0.89 ms in torch, "
            "forward and backward, and the forward pass of GELU 0.35 ms against 0.09 ms, while "
            "its dense layers take 0.8x to 1.1x the time of torch's. The rest of the difference is "
            "the share of the ideal.",
            r".*: cost of a fit, pipeline": "One exchange between the processes, the gathering of "
            "the weights, and Keras. For transformers the rounds differ by more than the value.",
        },
    ),
    "scaling_model": Section(
        "The model of scaling",
        "The time of an update of the pipeline above, as `millrace simulate` predicts it from the "
        "costs of its tasks, transfers and dispatch, measured apart, over the time that two "
        "processes take.",
        "scaling.md",
    ),
    "data_parallel": Section(
        "Replicas over two processes",
        "Rows per second of two processes with one CPU core each, compared with one process on one "
        "core. Gradients are summed once per update. Only the larger models have "
        "bars: their updates take 4 batches per replica, or 16.",
        "replicas.md",
        {
            r"convnet 32: .*": "Not explained yet. On another machine the bar was met, with sums "
            "over loopback (2.22x).",
        },
    ),
    "recompute_lstm": Section(
        "Recomputation by boundaries",
        "An LSTM of 256 units over 2048 time steps with 7 or 15 boundaries in the sequence: "
        "temporary memory and time, compared with the same model without recomputation (0), and "
        "with handwritten JAX with the same cuts (`jax.checkpoint` of the inner of two scans).",
        "recomputation.md",
        {r"memory: millrace, 7 / jax, 7": "Not explained yet. With 15 boundaries the bar is met."},
    ),
    "target_budgets": Section(
        "Recomputation by budget, for devices that are not there",
        "Budgets of 0.6 and 0.4 of the peak of plain training, on a CPU that is there and on an "
        "H100 and a TPU v5e that are described: their own compilers say every peak. Three of the "
        "24 families, since the compiler for TPUs takes up to half a minute for each of the "
        "others' programs. The v5e refuses both budgets of the MLP: its compiler keeps all "
        "activations in vector memory, and 1.000 of the peak is arguments.",
        "recomputation.md#a-budget",
    ),
    "target_plans": Section(
        "Reports and plans for devices that are not there",
        "Seconds, and host memory, of a memory report and of a plan of a transformer with 12 "
        "blocks for an H100, and of the report of one with 6.7 billion parameters in stages over "
        "eight: nothing of it is in memory but its shapes. The peer is the report of the smaller "
        "one for the CPU.",
        "targets.md",
    ),
    "recompute_budget": Section(
        "Recomputation by budget",
        "Five budgets, from 0.9 to 0.4 of the peak of plain training, for each of 23 families of "
        "models, six of them from keras.applications; NASNetMobile, the 24th, was left out, since "
        "an earlier run of it had not ended after 35 minutes. 114 of 115 budgets are kept. The "
        "other one is that of 0.4 for InceptionV3, whose weights alone are 0.33 of the peak: 0.47 "
        "is the least that was compiled for it. "
        "Activations are the temporary memory of a step without the gradients of weights, measured "
        "where all gradients wait for the update, as in the peers: plain training, and "
        "`jax.checkpoint` around the model with each of three policies, at as many FLOPs. Other "
        "programs ran beside many of the families, so that the seconds are too high; peaks and "
        "FLOPs are exact.",
        "recomputation.md#a-budget",
        {
            r"families with a third.*": "Three of 23. MLP, 1.28x: at 1.19x the tensors that are "
            "alive are 0.32 of the activations, and what XLA's packing of them leaves unused makes "
            "it 0.40. Encoder-decoder LSTM, 1.28x: all of its loops must run again, and at 1.23x "
            "XLA keeps 0.41 where the tensors in use are 0.33. WaveNet, 1.81x: to run all of its "
            "forward again once costs 1.33x already. At 1.38x the tensors in use are 0.35, and XLA "
            "keeps 0.39.",
            r"the longest of these": "ConvNeXtTiny 7.0x, mixture of experts 5.6x, Xception 4.1x, "
            "pyramid 3.9x, attention U-Net 3.7x, two losses and MobileNetV2 3.4x, U-Net 3.3x, with "
            "other programs beside most of them: the first budget of a model searches the orders, "
            "and where the first prediction does not hold, a budget compiles three programs or "
            "more. The refusal for InceptionV3 took 344 s, or 12.5x, with the changes that it "
            "compiles to say what would fit.",
        },
    ),
    "plan_peaks": Section(
        "Plans: predicted and compiled peaks",
        "Ten small models on 1, 2 and 4 virtual devices, each with 1.0, 0.8, 0.6 and 0.4 of the "
        "memory of plain training in one piece. The compiled peak of the training that a plan set "
        "is compared with the planned one, and its losses with those of plain Keras. The machine "
        "was busy with tests for much of the time, so that the longest time to plan is too high. "
        "The others do not fit: their memory is below the least that was compiled.",
        "plan.md",
    ),
    "plan_times": Section(
        "Plans: the chosen and the fastest alternative",
        "Ten small models, with all and with 0.8 of the memory of plain training. On one device, "
        "every alternative of the plans is trained, on one core. On two, up to 40 of the "
        "candidates that a plan compares are trained by two processes, each on a core of its own, "
        "for four of the models.",
        "plan.md",
        {
            r"two processes: within 10 %": "One of eight, the transformer with 0.8 of the memory: "
            "1.27x. The plan divides each batch in two. A budget on whole batches is faster, and "
            "is not among the three alternatives of the plan; with 40 it is one of them, predicted "
            "to take 6.26 ms, and the chosen one 6.30 ms.",
        },
    ),
    "start_up": Section(
        "Start-up",
        "Seconds from the start of a process to the end of its first training step: with "
        "nothing on disk (cold), with a cache of executables, and with exported ones. ResNet50 for "
        "32 x 32 images with batches of 8, and 12 transformer blocks of 64 in 4 stages.",
        "compile_cache.md",
        {
            r"resnet50: cached / cold.*": "Close to its bar: some runs meet it and some do not. "
            "The remaining time goes into imports, building the model, and tracing.",
            r"pipeline: cached / cold.*": "Every pass of every stage is traced and lowered again, "
            "one after another in Python, to know its key: half of the time within `fit`. Imports "
            "are a third of the start.",
            r"pipeline: exported / cold.*": "The cold start is already fast: equal stages are "
            "compiled once. Imports take half of an exported start.",
        },
    ),
    "stage_compilation": Section(
        "Compiling a pipeline",
        "All programs of 12 transformer blocks of 128 in four stages, compared with compiling them "
        "one after another without sharing, and with the programs of a single stage.",
        "pipelines.md",
        {
            r"all / one stage": "XLA compiles each program on both cores, so the times add up. The "
            "first stage returns no cotangent, and the last one computes the loss: three forward "
            "and three backward passes are compiled instead of one each. Sharing them would take "
            "a product more in the first stage and a call more in the last one, for every batch."
        },
    ),
    "compile_watch": Section(
        "Watching for recompilations",
        "Cost of watching for the cause of every compilation, while nothing is compiled: a share "
        "of the shortest steps, with one step per execution.",
        "recompilation.md",
    ),
    "tensor_statistics": Section(
        "Statistics of tensors",
        "Time per step inside `fit` with statistics of all activations and gradients in every "
        "step, compared with training without. Dense layers: 8 of the width shown.",
        "tensor_statistics.md",
        {
            r"mlp .*: every tensor.*": "A step of a dense layer is short compared with the pass "
            "over its tensors. `every=10` costs far less: see the file."
        },
    ),
    "nan_watch": Section(
        "NaNWatch",
        "Time per step inside `fit` with NaNWatch on all gradients, compared with training "
        "without.",
        "nan_watch.md",
        {
            r"mlp 128.*": "The steps are short compared with a pass over all gradients, and the "
            "rounds vary more than the bar allows."
        },
    ),
    "outfeed_queue": Section(
        "Outfeed queues",
        "A megabyte per step through an `OutfeedQueue` that a thread reads meanwhile, compared "
        "with a bare copy of a megabyte after each step. A call has two steps, whose values arrive "
        "together.",
        "outfeed.md",
    ),
    "outfeed_memory": Section(
        "Memory of outfeed queues",
        "All gradients of every step of a dense network through a `MaybeOutfeedQueue` that is read "
        "once an epoch, each run in a process of its own: the peak of the process above that of "
        "the same training without a queue, and the time per step.",
        "outfeed.md",
    ),
    "report_overhead": Section(
        "Records of a run",
        "Time per step inside `fit` with the records that a report is made of, compared with "
        "training without: all of them, and those without traces of chosen updates. Three dense "
        "layers of the width shown, with one step per execution or as many as one call can hold. "
        "The second model without records shows how much two equal trainings differ.",
        "reports.md",
        {
            r"mlp .*": "Records of an execution take some 20 us in Python. A trace takes 0.3 to "
            "0.8 ms more, and these loops are short: updates 1, 2, 4, 8 and so on leave one, seven "
            "of 60 executions, but twelve of 2048."
        },
    ),
    "checkpoint_saves": Section(
        "Checkpoints",
        "Eight dense layers of 1024 with Adam: 100 MB of values. The time for which training waits "
        "for a save, compared with a bare copy of the same values; time per step with a save in "
        "the background about every 5 seconds, compared with none, and the same for plain Keras "
        "with `BackupAndRestore`; and the time to the end of the first step after a restart, with "
        "a warm cache of executables, compared with the same process without a checkpoint: from "
        "its start, and from that of `fit`.",
        "checkpoints.md",
        {
            r"resumed / without, from the start of fit.*": "To read 100 MB and compare them with "
            "their checksum takes 0.07 s, and to copy them into JAX's memory 0.03 s, much of it "
            "for new pages; `fit` has only 0.3 s to do without them. A faster checksum (xxh3) "
            "would save 0.02 s, and arrays that JAX takes over as they are nothing: the first "
            "step copies them. The start of a process has more to do, and meets the bar.",
        },
    ),
    "timeline_trace": Section(
        "Traces of updates",
        "Time per update with records and traces of chosen updates, compared with training "
        "without either; and the end of an update as its schedule simulates it from the mean "
        "durations of its tasks, compared with the measured one. Pipelines of two stages in two "
        "processes, one core each, and models in one piece.",
        "reports.md",
        {
            r"whole tanh 64: .*": "A step takes 0.2 ms, records of an execution 20 us of it, and 9 "
            "of 256 updates leave a trace."
        },
    ),
    "report_page": Section(
        "The page of a report",
        "A report of a model of 1000 layers with traces of 100,000 tasks: seconds to write it, "
        "bytes, and milliseconds to draw it in headless Chromium, compared with the same traces "
        "in Perfetto's format.",
        "reports.md",
    ),
    "custom_loop": Section(
        "Custom training loops",
        "A training loop in plain Keras, compiled by `repeat`, compared with the same loop "
        "handwritten in JAX: with the data on the device, and with a data set in Python and every "
        "loss in an outfeed.",
        "custom_loops.md",
        {
            r"mlp: repeat / jax fori_loop": "The rounds of this run vary from less than the peer's "
            "time to twice that. The other models meet their bars in the same run."
        },
    ),
    "own_replicas": Section(
        "Replicas of a loop of your own",
        "A loop of `repeat` with `replicas=2` on two processes of one core each, compared with the "
        "same loop without replicas in one such process: an infeed, the mean of the gradients in "
        "every step, and every loss in an outfeed. The mlp 256 exchanges 0.9 MB in a step, the "
        "convnet 20 kB.",
        "custom_loops.md",
        {
            r"mlp 256.*": "The exchange takes 3 ms of a step of 19 ms, which the kernel spends on "
            "copying 0.9 MB through TCP and back, and two processes that compute at the same time "
            "share the memory: without any exchange, they reach 1.69x (1.53-1.75)."
        },
    ),
    "feed_benchmark": Section(
        "Measuring a data set",
        "Elements per second reported by `dataset_benchmark` and `infeed_benchmark`, compared with "
        "a loop timed by hand. The preparation of a batch waits, or computes; the last rows show "
        "the cost of passing batches on without any preparation.",
        "feed_benchmarks.md",
    ),
    "gradient_accumulation": Section(
        "Gradient accumulation",
        "Time per micro-batch with four accumulated per update, compared with one update per "
        "batch, and with plain Keras, whose optimizers can accumulate.",
        "gradient_accumulation.md",
    ),
    "micro_batches": Section(
        "Batches in parts",
        "Time per step with batches of 64 rows computed 64, 32, 16 and 8 rows at a time, compared "
        "with plain Keras, and the temporary bytes of each program.",
        "gradient_accumulation.md",
    ),
    "own_steps": Section(
        "A train_step of one's own",
        "Time per step of a `train_step` as Keras's guide writes it, compared with `fit` with the "
        "stock step.",
        "own_steps.md",
    ),
    "infeed": Section(
        "Infeed",
        "`fit` on a data set whose preparation is slower, or faster, than the device, "
        "compared with the slower of preparation and computation alone.",
        "infeed.md",
    ),
    "compile_time": Section(
        "The first execution",
        "Cost and number of compilations, by steps per execution.",
        "steps_per_execution.md",
    ),
    "import_time": Section("Import", "Time that `import millrace` adds to `import keras`."),
    "optimizer_offload": Section(
        "Offloading the optimizer's state",
        "Time and device memory with the optimizer's state in host memory between updates, "
        "compared with training with it on the device. Needs an accelerator.",
        "offload.md",
    ),
}

CLAIMS = (
    Claim(
        "Many steps in one compiled call",
        "steps_per_execution.md",
        "plain Keras 3.15, at its best setting",
        "{} times as fast",
        ("peers", "steps_per_execution"),
        (r".*, fit: keras 3\.15|.*: keras / millrace",),
    ),
    Claim(
        "The same",
        "steps_per_execution.md",
        "Keras 3.16, which scans, at its best setting",
        "{} times as fast",
        ("peers", "steps_per_execution"),
        (r".*, fit: keras 3\.16|.*: next keras / millrace",),
    ),
    Claim(
        "The same",
        "steps_per_execution.md",
        "Keras on torch, eager or compiled",
        "{} times as fast",
        ("peers",),
        (r".*, fit: keras on torch",),
    ),
    Claim(
        "The same",
        "steps_per_execution.md",
        "a scan of steps, handwritten in JAX",
        "{} times as fast",
        ("peers",),
        (r".*, fit: jax, scan",),
    ),
    Claim(
        "A pipeline over two processes",
        "processes.md",
        "`torch.distributed.pipelining`",
        "{} times as fast",
        ("peers", "pipeline_processes"),
        (r"1 / .*: millrace / torch|.*: torch\.distributed\.pipelining",),
    ),
    Claim(
        "Recomputation by boundaries, LSTM",
        "recomputation.md",
        "the same without recomputation",
        "{} of the memory, {} times as fast",
        ("recompute_lstm",),
        (r"memory: .* / millrace, 0", r"1 / time: .* / millrace, 0"),
    ),
    Claim(
        "Recomputation by budget, median of 23 families",
        "recomputation.md#a-budget",
        "plain training",
        "0.33 of the memory of activations, {} times as fast (by FLOPs)",
        ("recompute_budget",),
        (r"1 / FLOPs for a third of the activations / plain",),
    ),
    Claim(
        "Start with executables from a cache, or exported",
        "compile_cache.md",
        "the first start of a process",
        "{} times as fast, exported {}",
        ("start_up",),
        (r"1 / .*: cached / cold.*", r"1 / .*: exported / cold.*"),
    ),
)
