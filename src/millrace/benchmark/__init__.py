"""Benchmarks of data sets: how fast they supply batches, and whether a model waits for them.

    throughput.py   dataset_benchmark, infeed_benchmark
    verdict.py      feed_verdict: loading alone, the model alone, both together
    sources.py      the kinds of data sets, and how their elements are read
    supply.py       the thread that draws elements, and its queue
    command.py      the command `millrace benchmark`, and names such as `module:name`
    show.py         the clock of a benchmark, its lines and tables

Training uses none of this: benchmarks read data sets, and call `fit` as a user does.
"""
