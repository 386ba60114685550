"""The command `millrace benchmark`, and the objects that names such as `module:name` stand for."""

import difflib
import importlib
import importlib.util
import json
import os
import pathlib
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from millrace.benchmark.show import supply_table
from millrace.benchmark.throughput import measure_dataset, measure_infeed
from millrace.compiling.progress import search
from millrace.errors import OptionError, line_and_cause
from millrace.options import whole_number
from millrace.records.feed_benchmark import Supply


def load(text: str) -> Any:
    """Imports a module, also from the current directory, and returns one of its attributes.

    Errors of the module itself propagate unchanged.

    Args:
        text: `module:name` or `file.py:name`.

    Raises:
        OptionError: if there is no such module, file or name; the message shows similar ones.
    """
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise OptionError(
            f"{text!r} does not name a variable or a function of a module. Write module:name, "
            "such as loaders.images:train, or path/to/file.py:name."
        )
    try:
        module = _module_of_file(pathlib.Path(where)) if where.endswith(".py") else _module(where)
    except SyntaxError as error:
        raise _not_python(error.filename or where, error) from None
    if not hasattr(module, name):
        names = [
            other
            for other, value in vars(module).items()
            if not other.startswith("_") and not isinstance(value, types.ModuleType)
        ]
        raise OptionError(f"{where} has no {name!r}. {_near(name, names)}")
    return getattr(module, name)


def _not_python(where: str, error: SyntaxError | ValueError) -> OptionError:
    line, cause = line_and_cause(error)
    return OptionError(f"{where}{line} is not a Python program: {cause}. Correct it first.")


def _module(name: str) -> types.ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (ModuleNotFoundError, TypeError) as error:  # TypeError: of a name that begins with "."
        missing = getattr(error, "name", None) or name
        if not f"{name}.".startswith(f"{missing}."):
            raise  # the module exists, and imports another one that does not
        # Suggests modules of the package, or of the current directory.
        package = sys.modules.get(missing.rpartition(".")[0])
        path = getattr(package, "__path__", None) or [here]
        last = missing.rpartition(".")[2]
        names = [other.name for other in pkgutil.iter_modules(path)]
        raise OptionError(
            f"There is no module {missing!r}, neither installed nor in {here}. {_near(last, names)}"
        ) from None


def _module_of_file(path: pathlib.Path) -> types.ModuleType:
    if not path.is_file():
        names = sorted(other.name for other in path.parent.glob("*.py"))
        raise OptionError(f"There is no file {str(path)!r}. {_near(path.name, names)}")
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except ValueError as error:  # null bytes, on Python 3.11.2
        raise _not_python(str(path), error) from None
    path = path.resolve()
    for module in list(sys.modules.values()):
        # Not by getattr on the module, which would load modules that load lazily.
        attributes = getattr(module, "__dict__", {})
        if attributes.get("__file__") == str(path) and attributes.get("__name__") != "__main__":
            return module
    # The file can import its neighbours, as it can when it is run as a script.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # A file with the name of an installed module, such as random.py, must not replace it.
    name = path.stem if importlib.util.find_spec(path.stem) is None else f"_benchmarked_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: worker processes find it by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _near(name: str, names: Iterable[str]) -> str:
    existing = sorted(names)
    near = difflib.get_close_matches(name, existing, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"{hint}It has: {', '.join(existing)}." if existing else "There are no others."


@dataclass(frozen=True, slots=True)
class FeedReport:
    """Measurements of a data set, and of its infeed where that was requested."""

    dataset: Supply
    infeed: Supply | None = None

    def as_json(self) -> str:
        """Returns JSON of the data set's measurements, with `infeed` if present."""
        report = self.dataset.as_json()
        if self.infeed is not None:
            report["infeed"] = self.infeed.as_json()
        return json.dumps(report)

    def print(self) -> None:
        """Prints a table."""
        console = Console(highlight=False, soft_wrap=True)
        supplies = {"data set": self.dataset, "infeed": self.infeed}
        console.print(supply_table({k: v for k, v in supplies.items() if v is not None}))
        console.print(f"\nfirst element after {self.dataset.first_element_seconds:.3f} s")


def benchmark_feed(dataset: str, epochs: int, elements: int, with_infeed: bool) -> FeedReport:
    """Measures a data set that is given by name.

    Args:
        dataset: `module:name` or `file.py:name` of a data set, or of a function that returns one.
        epochs: number of epochs, each timed separately.
        elements: elements in each epoch.
        with_infeed: whether to measure the data set through the infeed, too.
    """
    whole_number("--epochs", epochs, 1)
    whole_number("--elements", elements, 1)
    source = load(dataset)

    def run(title: str, measure: Callable[..., Supply]) -> Supply:
        with search(f"measuring the {title}"):
            return measure(source, epochs, elements)

    return FeedReport(
        dataset=run("data set", measure_dataset),
        infeed=run("infeed", measure_infeed) if with_infeed else None,
    )
