import importlib.util
import pathlib

from millrace.run.schedules.task import Pass, Task

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "slots.py"


def test_a_slot_device_takes_its_tasks_in_order():
    spec = importlib.util.spec_from_file_location("slots", PATH)
    slots = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(slots)
    row = [Task(0, Pass.FORWARD, 0), Task(0, Pass.BACKWARD, 0)]
    device = slots.SlotDevice(row, forward=0.0, backward=0.0)
    for kind in (Pass.FORWARD, Pass.BACKWARD) * 2:
        device.run(kind)
