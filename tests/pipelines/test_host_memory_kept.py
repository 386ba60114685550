"""The allocator of a process that keeps freed memory."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from millrace.pipelines.runtime.host_memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def use():
    arrays = [np.ones(2**18) for _ in range(20)]  # 2 MiB each
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        use()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
use()
print("faults", faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_memory_that_was_freed_is_used_again_without_new_pages():
    found = {}
    for how in ("kept", "returned"):
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
        )
        found[how] = int(result.stdout.rpartition("faults ")[2])
    assert found["kept"] < found["returned"] / 10
