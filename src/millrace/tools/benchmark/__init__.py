"""Benchmarks of data sets: how fast they supply batches.

    throughput.py   dataset_benchmark, infeed_benchmark
    sources.py      the kinds of data sets, and how their elements are read
    supply.py       the clock of a benchmark, and its output

Training uses none of this. Whether a model waits for its data, its own run says
(`tools/reports/limits.py`).
"""
