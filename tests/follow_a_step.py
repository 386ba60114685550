"""Loads the runner of `make gpu` from a file, which follows a step that sleeps."""

import importlib.util
import sys

path = sys.argv[1]
sys.argv = ["gpu.py", "--dry-run"]
spec = importlib.util.spec_from_file_location("gpu_runner", path)
runner = importlib.util.module_from_spec(spec)
sys.modules["gpu_runner"] = runner
spec.loader.exec_module(runner)
runner.main()
sleep = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
runner.follow([sys.executable, "-c", sleep], {}, 60)
