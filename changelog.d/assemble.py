"""Writes the Unreleased section of CHANGELOG.md from the files beside this one.

Each file is one change, named `<what>.<kind>.md`, and holds one list entry in Markdown. One file
per change, so that two changes never meet in the same line. `--check` writes nothing, and fails
where the section is not what the files say.
"""

import argparse
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
CHANGELOG = HERE.parent / "CHANGELOG.md"
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
SECTION = re.compile(r"(?<=## \[Unreleased\]\n).*?(?=\n## \[|\Z)", re.DOTALL)


def section() -> str:
    """Returns the Unreleased section, below its heading."""
    changes: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sorted(HERE.glob("*.md")):
        parts = path.name.split(".")
        if len(parts) != 3 or parts[1] not in changes:
            sys.exit(f"{path.name} is not named <what>.<kind>.md, with one of {', '.join(KINDS)}.")
        changes[parts[1]].append(path.read_text().strip())
    return "".join(
        f"\n### {kind.capitalize()}\n\n" + "\n".join(entries) + "\n"
        for kind, entries in changes.items()
        if entries
    )


def main() -> None:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = CHANGELOG.read_text()
    after, found = SECTION.subn(lambda _: section(), before, count=1)
    if not found:
        sys.exit("CHANGELOG.md has no line '## [Unreleased]'.")
    if check and after != before:
        sys.exit("CHANGELOG.md is not up to date. Run python changelog.d/assemble.py.")
    CHANGELOG.write_text(after)


if __name__ == "__main__":
    main()
