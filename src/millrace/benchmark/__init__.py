"""How fast a data set supplies batches, and whether a model would wait for them.

    throughput.py   dataset_benchmark, infeed_benchmark
    verdict.py      feed_verdict: loading alone, the model alone, both
    sources.py      what a data set may be, and how its elements are read
    supply.py       the thread that pulls elements, and the queue behind it
    measure.py      epochs of a benchmark, timed
    command.py      what `millrace benchmark` does
    named.py        `module:name` and `file.py:name`
    show.py         lines, tables, progress

Nothing here is part of training: it reads data sets, and calls `fit` as a user does.
"""
