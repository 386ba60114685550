"""Benchmarks of data sets: how fast they supply batches.

    throughput.py   dataset_benchmark, infeed_benchmark
    sources.py      the kinds of data sets, and how their elements are read
    command.py      the command `millrace benchmark`, and names such as `module:name`
    show.py         the clock of a benchmark, its lines and tables

Training uses none of this. Whether a model waits for its data, its own run says
(`reports/limits.py`).
"""
