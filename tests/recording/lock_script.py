"""Locks a directory and prints whether it could: `lock_script.py directory shared|alone`."""

import fcntl
import os
import sys

kind = fcntl.LOCK_SH if sys.argv[2] == "shared" else fcntl.LOCK_EX
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_NB | kind)
    print(True, flush=True)
except BlockingIOError:
    print(False, flush=True)
sys.stdin.read()
