"""Builds the files of a release: a wheel and an sdist of millrace, and both of millrace-ipu.

    python release.py             as the files are here, into dist/: `make wheels`
    python release.py v0.1.0      as the tag has them: `make release TAG=v0.1.0`

Two builds of one tag by the same hatchling have the same bytes. Nothing is uploaded: the command
for that is printed last.
"""

import argparse
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator

from packaging.metadata import Metadata

HERE = pathlib.Path(__file__).resolve().parent
VERSION = re.compile(r'^__version__ = "(.+)"', re.MULTILINE)
# Never in a wheel.
STRAY = re.compile(r"(^|/)(tests?|benchmarks|examples|docs|__pycache__|conftest\.py)(/|$)|\.pyc$")


def git(*words: str) -> str:
    """Returns the output of git; an empty text where it fails."""
    return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True).stdout.strip()


def obstacles(tag: str) -> Iterator[str]:
    """Says what keeps the tag from being released from here, and how to mend it."""
    commit = git("rev-parse", "--verify", "-q", f"{tag}^{{commit}}")
    if not commit:
        yield f"There is no tag {tag}: git tag {tag}."
        return
    if git("rev-parse", "HEAD") != commit:
        yield f"Another commit is checked out: git checkout {tag}."
    if changed := git("status", "--porcelain"):
        yield f"Files are changed or not committed; commit or remove them:\n{changed}"
    (version,) = VERSION.findall(git("show", f"{tag}:src/millrace/__init__.py"))
    if tag != f"v{version}":
        yield f"Its version is {version}, so the tag has to be v{version}."
    changes = git("show", f"{tag}:CHANGELOG.md")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield f"CHANGELOG.md has no line '## [{version}] - YYYY-MM-DD'."
    urls = tomllib.loads(git("show", f"{tag}:pyproject.toml"))["project"]["urls"]
    origin = git("remote", "get-url", "origin")
    # git@host:owner/name.git and ssh://git@host/owner/name.git are the same place.
    place = re.sub(r"^(ssh://)?git@([^:/]+)[:/]", r"https://\2/", origin).removesuffix(".git")
    if place != urls["Repository"]:
        yield f"origin is {origin or 'not set'}, and not {urls['Repository']}."


def build(source: pathlib.Path, target: pathlib.Path, seconds: str) -> list[pathlib.Path]:
    """Builds all files of a tree.

    Args:
        source: the root of the tree.
        target: the folder for the files; those of earlier builds are removed.
        seconds: the time in the archives, in seconds since 1970; empty for hatchling's own.
    """
    target.mkdir(exist_ok=True)
    for old in (*target.glob("millrace*"), *target.glob("SHA256SUMS")):
        old.unlink()
    environment = {**os.environ, **({"SOURCE_DATE_EPOCH": seconds} if seconds else {})}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target.resolve())]
    for folder in (source, source / "millrace-ipu"):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
    return sorted(target.glob("millrace*"))


def faults(path: pathlib.Path) -> Iterator[str]:
    """Says what is wrong with a built file, a wheel or an sdist."""
    top = path.name.removesuffix(".tar.gz")
    if path.suffix == ".whl":
        package, version, *_ = path.name.split("-")
        info = f"{package}-{version}.dist-info"
        with zipfile.ZipFile(path) as wheel:
            names = set(wheel.namelist())
            text = wheel.read(f"{info}/METADATA")
        needed = [f"{package}/__init__.py", f"{package}/py.typed", f"{info}/licenses/LICENSE"]
        strays = {name for name in names if name.split("/")[0] not in (package, info)}
        strays |= {name for name in names if STRAY.search(name)}
    else:
        with tarfile.open(path) as sdist:
            names = {name.removeprefix(f"{top}/") for name in sdist.getnames()}
            text = sdist.extractfile(f"{top}/PKG-INFO").read()  # type: ignore[union-attr]
        needed = ["pyproject.toml", "hatch_build.py", "LICENSE", "README.md"]
        strays = {name for name in names if "__pycache__" in name}
    yield from (f"{path.name} has {name}" for name in sorted(strays))
    yield from (f"{path.name} lacks {name}" for name in needed if name not in names)
    metadata = Metadata.from_email(text, validate=True)
    if metadata.description_content_type != "text/markdown" or not metadata.description:
        yield f"{path.name} lacks a long description"


def main() -> None:
    """Builds, checks, and says how to upload."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tag", nargs="?", help="such as v0.1.0; without one, the files as they are")
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "dist", help="[dist]")
    options = parser.parse_args()
    seconds = git("log", "-1", "--format=%ct", options.tag or "HEAD")
    if not options.tag:
        files = build(HERE, options.output, seconds)
    else:
        if found := list(obstacles(options.tag)):
            sys.exit("\n".join([f"{options.tag} cannot be released:", *found]))
        command = ["git", "archive", options.tag]
        archive = subprocess.run(command, cwd=HERE, check=True, capture_output=True).stdout
        with tempfile.TemporaryDirectory() as clean:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(clean, filter="data")
            files = build(pathlib.Path(clean), options.output, seconds)
    if wrong := [fault for path in files for fault in faults(path)]:
        sys.exit("\n".join(wrong))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (options.output / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")
    if options.tag:
        print("Try them: make test-wheels. Then upload them:")
        print("    python -m twine upload", *(os.path.relpath(path) for path in files))


if __name__ == "__main__":
    main()
