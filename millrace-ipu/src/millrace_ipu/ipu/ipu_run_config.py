"""Configurations of estimators. They keep their arguments; see `ipu_estimator`.

RunConfig(ipu_run_config=IPURunConfig(iterations_per_loop=100), model_dir="d")
"""

from dataclasses import dataclass
from typing import Any

from millrace_ipu.ipu.replacements import other_name as _other_name
from millrace_ipu.tensorflow import estimator as _estimator


@dataclass(frozen=True)
class IPURunConfig:
    """Options of an estimator about devices and the length of an execution."""

    iterations_per_loop: int = 1
    ipu_options: Any = None
    num_replicas: int = 1
    num_shards: int = 1
    ordinal: int = 0
    prefetch_depth: int | None = None
    compile_summary: bool = False  # of releases before 2.4, as `autosharding`
    autosharding: bool = False


class RunConfig(_estimator.RunConfig):
    """Keeps the options of an estimator, those about devices in an `IPURunConfig`."""

    def __init__(
        self,
        ipu_run_config: IPURunConfig | None = None,
        master: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.ipu_run_config, self.master = ipu_run_config or IPURunConfig(), master


def __getattr__(name: str) -> Any:
    return _other_name(__name__, name)
