"""The tutorial's modules for outfeeds, in a program's directory: which are served by millrace's.

no file of the name                           millrace's module is served
a file that does not need private Keras       the program's own module is imported
copies of the tutorial's, one of them         millrace's modules are served for all of the copies:
against TensorFlow's private Keras            their queues, layers and optimizers work together
"""

import logging
import pathlib
import re
from collections.abc import Iterator

logger = logging.getLogger("millrace")

# The classes of each module, by which a copy is recognized.
MODULES = {
    "outfeed_callback": {"OutfeedCallback"},
    "outfeed_layers": {"Outfeed", "MaybeOutfeed"},
    "outfeed_optimizer": {"OutfeedOptimizer", "OutfeedOptimizerMode"},
    "outfeed_wrapper": {"MaybeOutfeedQueue"},
    "maybe_outfeed_queue": {"MaybeOutfeedQueue"},
}
_SERVED_BY = {"maybe_outfeed_queue": "outfeed_wrapper"}
_PRIVATE = ("optimizer_v2", "tensorflow.python.training", "keras.engine", "keras.src", "base_layer",
            "get_default_graph", "_scratch_graph")  # fmt: skip


class TutorialModules:
    """The tutorial's modules, as a program finds them."""

    def __init__(self, directory: pathlib.Path):
        """Reads the program's own ones.

        Args:
            directory: of the program. Packages in it are looked through, too.
        """
        copies: dict[str, pathlib.Path] = {}
        needs_private = False
        own: set[str] = set()
        for name, path in _files(directory):
            own.add(name)
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            classes = set(re.findall(r"^class (\w+)", text, re.MULTILINE))
            if classes and classes <= MODULES[path.stem]:  # the tutorial's, and no others
                copies[name] = path.relative_to(directory)
                needs_private |= any(private in text for private in _PRIVATE)
        self._copies = copies if needs_private else {}
        missing = {name for name in MODULES if name not in own}
        self.aliases = {name: _served_by(name) for name in (*self._copies, *missing)}
        self._has_said = False

    def say(self, name: str) -> None:
        """Says once that millrace's modules are in the place of copies.

        Args:
            name: of a module that the program imports.
        """
        if name not in self._copies or self._has_said:
            return
        self._has_said = True
        logger.warning(
            "%s: written against TensorFlow's private Keras, which is not here. The modules of the "
            "same names in millrace_ipu.ipu are used in their place.",
            ", ".join(sorted(map(str, self._copies.values()))),
        )


def _served_by(name: str) -> str:
    last = name.rpartition(".")[2]
    return f"millrace_ipu.ipu.{_SERVED_BY.get(last, last)}"


def _files(directory: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields the name of each of the tutorial's modules in a directory, and its file."""
    if not directory.is_dir():
        return
    for stem in MODULES:
        for path in (directory / stem, directory / f"{stem}.py"):
            if path.exists():
                yield stem, path
        for path in sorted(directory.glob(f"*/{stem}.py")):
            yield f"{path.parent.name}.{stem}", path
