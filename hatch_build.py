"""The README for package indexes: its links and pictures are addresses of the version's tag."""

import pathlib
import posixpath
import re
import tomllib
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = pathlib.Path(__file__).parent
URLS: dict[str, str] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["urls"]
_LINK = re.compile(r'(?P<before>!\[[^\]]*\]\(|\]\(|(?:src|srcset|href)=")(?P<to>[^)\s"]+)')


def readme(folder: pathlib.Path, version: str) -> dict[str, str]:
    """Returns the README of a folder of the repository, as hatchling takes it."""
    page = folder / "README.md"

    def absolute(link: re.Match[str]) -> str:
        path, mark, heading = link["to"].partition("#")
        target = (folder / path if path else page).resolve()
        if not target.exists():  # an address, or code such as `layers[0](x)`
            return link[0]
        is_picture = link["before"].startswith(("!", "src"))
        kind = "raw" if is_picture else "tree" if target.is_dir() else "blob"
        place = posixpath.join(URLS["Repository"], kind, f"v{version}")
        return f"{link['before']}{place}/{target.relative_to(REPOSITORY)}{mark}{heading}"

    text = _LINK.sub(absolute, page.read_text(encoding="utf-8"))
    return {"content-type": "text/markdown", "text": text}


class MetadataHook(MetadataHookInterface):
    """Called by Hatchling where it builds from the repository; an sdist has the results."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the README."""
        metadata["readme"] = readme(pathlib.Path(self.root), metadata["version"])
