import os
import pathlib
import subprocess
import sys
import tomllib

import jax
import keras
import pytest

from millrace._compat import versions
from millrace._compat.names import NAMES, TESTED, Private
from millrace.errors import MillraceError, VersionError

ROOT = pathlib.Path(__file__).parents[2]
INSTALLED = {"keras": keras.__version__, "jax": jax.__version__}


@pytest.mark.slow
def test_a_keras_without_a_name_is_said_at_import():
    script = "import keras.src.ops.node; del keras.src.ops.node.Node; import millrace"
    last = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    assert (
        f"millrace.errors.VersionError: keras {keras.__version__} lacks names that millrace uses:\n"
        "    keras.src.ops.node.Node    a call in a graph, which notes its stage\n"
    ) in last
    assert "millrace is tested with keras 3.13 to 3.16. Install one of those:\n" in last
    assert 'python -m pip install "keras>=3.13,<3.17"' in last


def test_a_jax_without_a_module_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax._src.clusters", None)
    with pytest.raises(VersionError) as caught:
        versions.check()
    assert str(caught.value) == (
        f"jax {jax.__version__} lacks names that millrace uses:\n"
        "    jax._src.clusters.ClusterEnv    the facts that Slurm and others give about a process\n"
        "    jax._src.clusters.ClusterEnv.auto_detect_unset_distributed_params"
        "    the facts that Slurm and others give about a process\n"
        "millrace is tested with jax 0.10 to 0.12. Install one of those:\n"
        '    python -m pip install "jax>=0.10,<0.13"'
    )


def test_the_installed_versions_have_all_names():
    versions.check()


@pytest.mark.parametrize(
    ("library", "place", "name"),
    [
        ("keras", "keras:Model", "_jax_state"),  # given by a method
        ("jax", "jax.stages:Compiled", "_params"),  # a slot
        ("jax", "jax._src.pjit", "_jit_info"),  # given by a function of the module
    ],
)
def test_attributes_of_objects_are_looked_for(library, place, name):
    there = Private(name, "", {"0": (place,)})
    gone = Private(f"{name}_of_old", "a test", {"0": (place,)})
    versions.check({library: INSTALLED[library]}, {library: [there]})
    where = place.replace(":", ".")
    with pytest.raises(VersionError, match=rf"\n    {where}.{name}_of_old    a test\n"):
        versions.check({library: INSTALLED[library]}, {library: [there, gone]})


def test_a_name_may_lie_elsewhere_before_a_version():
    moved = Private("Model", "", {"0": ("keras",), "3.15.5": ("keras.src.no_such_module",)})
    new = Private("no_such_name", "", {"0": (), "3.15.5": ("keras",)})
    versions.check({"keras": "3.15.1"}, {"keras": [moved, new]})
    # One before its release may have names where the last one had them, but it has to have them.
    versions.check({"keras": "3.16.0.dev20260101"}, {"keras": [moved]})
    gone = Private("Modell", "a test", {"0": ("keras",), "3.15.5": ("keras.src.no_such_module",)})
    with pytest.raises(VersionError, match=r"keras\.src\.no_such_module\.Modell    a test"):
        versions.check({"keras": "3.16.0.dev20260101"}, {"keras": [gone]})


def test_what_lies_in_two_places_has_to_lie_in_both():
    both = Private("Model", "a test", {"0": ("keras", "keras.src.no_such_module")})
    with pytest.raises(VersionError, match=r"\n    keras\.src\.no_such_module\.Model    a test"):
        versions.check({"keras": "3.15.1"}, {"keras": [both]})


@pytest.mark.parametrize(
    ("library", "version", "command"),
    [
        ("keras", "3.12.4", 'python -m pip install "keras>=3.13,<3.17"'),
        ("jax", "0.9.2", 'python -m pip install "jax>=0.10,<0.13"'),
    ],
)
def test_an_older_version_is_refused(library, version, command):
    with pytest.raises(VersionError) as caught:
        versions.check({library: version}, NAMES)
    oldest = TESTED[library][0]
    assert str(caught.value) == (
        f"{library} {version} is older than {oldest}, the oldest that millrace runs on. "
        f"Install one of those:\n    {command}"
    )
    assert isinstance(caught.value, MillraceError)
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(("library", "version"), [("keras", "3.17.0"), ("jax", "0.13.1")])
def test_a_newer_version_with_all_names_is_said_once(library, version):
    oldest, newest = TESTED[library]
    with pytest.warns(UserWarning, match="millrace is tested with") as caught:
        versions.check({library: version}, {library: []})
    assert [str(each.message).partition(". ")[0] for each in caught] == [
        f"millrace is tested with {library} {oldest} to {newest}, and {version} is installed"
    ]


@pytest.mark.parametrize(
    "version", ["3.13.0", "3.16.0.dev2026102704", "3.16.2", "0.10", "0.12.0.1"]
)
def test_tested_versions_are_not_warned_of(version):
    library = "keras" if version.startswith("3") else "jax"
    versions.check({library: version}, {library: []})


def test_a_version_before_a_release_is_removed_first():
    with pytest.raises(VersionError, match="pip uninstall -y keras keras-nightly && "):
        versions.check(
            {"keras": "3.16.0.dev1"}, {"keras": [Private("no_such_name", "", {"0": ("keras",)})]}
        )


def test_the_package_allows_what_is_tested():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {"keras>=3.13,<3.17", "jax>=0.10,<0.13"} <= set(needed)
    assert TESTED == {"keras": ("3.13", "3.16"), "jax": ("0.10", "0.12")}


def test_what_has_moved_is_found():
    assert versions.private("remat") is versions.owners("remat")[0].remat
    with pytest.raises(LookupError, match="no_such_name is not in"):
        versions.owners("no_such_name")
