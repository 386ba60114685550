"""The facts that Ray Train gives about a worker, which JAX does not recognise.

Only a process that has imported Ray is asked: millrace never imports it by itself.
"""

import dataclasses
import importlib
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

from millrace.errors import ProcessError
from millrace.run.processes.listening import free_port


@dataclasses.dataclass(frozen=True, slots=True)
class RayWorker:
    """A worker within the function that a trainer of Ray Train runs."""

    rank: int
    count: int  # of workers

    @classmethod
    def this(cls) -> "RayWorker | None":
        """Returns the calling process; None if it is no worker of Ray Train."""
        train: Any = sys.modules.get("ray.train")
        if train is None:
            return None
        try:
            context = train.get_context()
            rank, count = context.get_world_rank(), context.get_world_size()
        except (AttributeError, RuntimeError, DeprecationWarning):  # outside of the function
            return None
        return cls(rank, count) if isinstance(rank, int) and isinstance(count, int) else None

    def rendezvous(self) -> tuple[str, str]:
        """Returns an address of worker 0 and a new name of the run; all workers call this.

        Raises:
            ProcessError: if this version of Ray Train cannot send them from worker 0.
        """
        try:
            collective: Any = importlib.import_module("ray.train.collective")
        except ImportError as error:
            ray: Any = sys.modules["ray"]
            raise ProcessError(
                f"Ray {ray.__version__} has no ray.train.collective here, by which worker 0 tells "
                "the others its address. Set RAY_TRAIN_V2_ENABLED=1, install a newer Ray, or pass "
                "coordinator_address, num_processes and process_id to initialize()."
            ) from error
        own = None
        if self.rank == 0:
            host = _own_host()
            own = {"address": f"{host}:{free_port(host)}", "run": uuid.uuid4().hex}
        common = collective.broadcast_from_rank_zero(own)
        return common["address"], common["run"]


def _own_host() -> str:
    util: Any = importlib.import_module("ray.util")
    return util.get_node_ip_address()


def when_this_thread_ends(call: Callable[[], None]) -> None:
    """Calls a function when the thread of the caller has ended: Ray ends the process later."""
    caller = threading.current_thread()

    def wait() -> None:
        caller.join()
        call()

    threading.Thread(target=wait, name="millrace end of worker", daemon=True).start()
