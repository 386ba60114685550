"""The two distributions, as they are built and installed: what is in each, and its commands."""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

import millrace

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def built(source, target, kind):
    """The file that hatchling builds of a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return max(target.iterdir(), key=os.path.getmtime)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels, unpacked: millrace, millrace-ipu."""
    folders = []
    for source in (ROOT, ROOT / "millrace-ipu"):
        folder = tmp_path_factory.mktemp("wheel")
        with zipfile.ZipFile(built(source, folder, "wheel")) as wheel:
            wheel.extractall(folder / "installed")
        folders.append(folder / "installed")
    return folders


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """All that is installed here, without millrace."""
    folder = tmp_path_factory.mktemp("libraries")
    for each in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if "millrace" not in each.name:
            (folder / each.name).symlink_to(each)
    return folder


def commands(*folders):
    """The commands of `millrace` where only these folders are installed."""
    path = os.pathsep.join(map(str, folders))
    run = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "millrace", "--help"],
        env={**os.environ, "PYTHONPATH": path, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"^  ([a-z][\w-]+)", run.stdout.partition("Commands:")[2], re.MULTILINE))


def test_each_wheel_has_one_package_and_its_license(wheels):
    tops = [{each.name for each in folder.iterdir()} for folder in wheels]
    assert "millrace" in tops[0]
    assert "millrace_ipu" not in tops[0]
    assert tops[1] == {"millrace_ipu", f"millrace_ipu-{millrace.__version__}.dist-info"}
    for folder, package in zip(wheels, ("millrace", "millrace_ipu"), strict=True):
        assert (folder / package / "py.typed").exists()
        assert list(folder.glob("*.dist-info/licenses/LICENSE"))


def test_the_second_needs_the_first_of_the_same_version(wheels):
    core, ipu = (next(folder.glob("*.dist-info/METADATA")).read_text() for folder in wheels)
    version = next(line for line in core.splitlines() if line.startswith("Version: "))
    assert version in ipu.splitlines()
    assert f"Requires-Dist: millrace=={version.removeprefix('Version: ')}" in ipu
    assert "millrace-ipu" not in core.partition("\n\n")[0]


def test_commands_for_ipu_programs_come_with_the_second(wheels, libraries):
    core, ipu = wheels
    alone = commands(core, libraries)
    assert "launch" in alone
    assert commands(core, ipu, libraries) == alone | {"port", "poprun", "run"}
