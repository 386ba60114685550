"""The README for package indexes, where links to files of this repository lead nowhere."""

import pathlib
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


class MetadataHook(MetadataHookInterface):
    """Called by Hatchling, which builds the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the README, with the texts of its links and pictures alone."""
        text = (pathlib.Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = _LINK.sub(r"\1", _PICTURE.sub(r"*\1*", text))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
