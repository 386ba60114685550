"""The metadata that millrace-ipu has from the repository around it."""

import pathlib
import runpy
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class MetadataHook(MetadataHookInterface):
    """Called by Hatchling where it builds from the repository; an sdist has the results."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the README, the addresses, and millrace of the same version."""
        folder = pathlib.Path(self.root)
        repository = runpy.run_path(str(folder.parent / "hatch_build.py"))
        metadata["readme"] = repository["readme"](folder, metadata["version"])
        metadata["urls"] = repository["URLS"]
        metadata["dependencies"] = [f"millrace=={metadata['version']}"]
