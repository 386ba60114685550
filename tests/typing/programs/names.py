"""The names of `millrace` are the public ones; its packages are not among them."""

import millrace
import millrace.distributed
from millrace import compile, pipeline, repeat

millrace.distributed.initialize(heartbeat_timeout=60)
compile(print)
repeat(2, print)
print(pipeline, millrace.records.load, millrace.__version__)
print(millrace.base)  # pyright: ignore[reportAttributeAccessIssue]
print(millrace.run)  # pyright: ignore[reportAttributeAccessIssue]
print(millrace.callbacks.keras)  # pyright: ignore[reportAttributeAccessIssue]
print(millrace.distributed.logging)  # pyright: ignore[reportPrivateImportUsage]
