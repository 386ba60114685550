"""The files of a release, in a repository that is ready for it: see release.py."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest

import millrace

ROOT = pathlib.Path(__file__).parent.parent
COMMIT = "git -c user.name=a -c user.email=a@b commit -qm release"
TAG = f"v{millrace.__version__}"
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
REPOSITORY = URLS["Repository"]
SSH = REPOSITORY.replace("https://github.com/", "git@github.com:") + ".git"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs git: this is an sdist"),
]


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def release(repository, tag=TAG, *words):
    return run(sys.executable, "release.py", tag, *words, cwd=repository)


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A repository of the files here, with a tag, an origin and a dated changelog."""
    at = tmp_path_factory.mktemp("ready")
    _, names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in names.split("\0"):
        if (ROOT / name).is_file():
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, at / name)
    changes = (at / "CHANGELOG.md").read_text()
    dated = changes.replace("- unreleased", "- 2026-01-01", 1)
    (at / "CHANGELOG.md").write_text(dated)
    for command in (
        *("init -q", "add .", COMMIT.removeprefix("git ")),
        *(f"tag {TAG}", "tag v9.9", f"remote add origin {REPOSITORY}.git"),
    ):
        assert run("git", *command.split(), cwd=at)[0] == 0, command
    return at


@pytest.fixture(scope="module")
def files(ready, tmp_path_factory):
    """The files of the tag, and what the script says."""
    at = tmp_path_factory.mktemp("dist")
    code, text = release(ready, TAG, "--output", str(at))
    assert code == 0, text
    return at, text


def test_a_tag_becomes_four_files_and_the_command_that_uploads_them(files):
    at, text = files
    names = [
        f"{package}-{millrace.__version__}{ending}"
        for package in ("millrace", "millrace_ipu")
        for ending in ("-py3-none-any.whl", ".tar.gz")
    ]
    assert sorted(os.listdir(at)) == ["SHA256SUMS", *names]
    sums = "".join(
        f"{hashlib.sha256((at / name).read_bytes()).hexdigest()}  {name}\n" for name in names
    )
    assert (at / "SHA256SUMS").read_text() == sums
    upload = text.splitlines()[-1].split()
    assert upload[:4] == ["python", "-m", "twine", "upload"]
    assert [os.path.basename(path) for path in upload[4:]] == names


def test_a_second_build_has_the_same_bytes(ready, files, tmp_path):
    (ready / "src" / "millrace" / "__init__.py").touch()
    assert release(ready, TAG, "--output", str(tmp_path))[0] == 0
    first, second = ((at / "SHA256SUMS").read_text() for at in (files[0], tmp_path))
    assert first == second


@pytest.mark.parametrize("package", ["millrace", "millrace_ipu"])
def test_the_wheel_of_an_sdist_is_the_wheel_of_the_tag(files, package, tmp_path):
    name = f"{package}-{millrace.__version__}"
    with tarfile.open(files[0] / f"{name}.tar.gz") as sdist:
        sdist.extractall(tmp_path, filter="data")
        (info,) = (m for m in sdist.getmembers() if m.name.endswith(f"{name}/PKG-INFO"))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(info.mtime)}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / name, env=environment, check=True)
    wheel = f"{name}-py3-none-any.whl"
    assert (tmp_path / wheel).read_bytes() == (files[0] / wheel).read_bytes()


@pytest.mark.parametrize(
    ("mistake", "tag", "line"),
    [
        ("true", "v0.0", "There is no tag v0.0: git tag v0.0."),
        ("true", "v9.9", f"Its version is {millrace.__version__}, so the tag has to be {TAG}."),
        ("touch new.py", TAG, "Files are changed or not committed; commit or remove them:"),
        ("git remote remove origin", TAG, f"origin is not set, and not {REPOSITORY}."),
        ("git remote set-url origin a@b:c", TAG, f"origin is a@b:c, and not {REPOSITORY}."),
        ("{commit} --allow-empty", TAG, f"Another commit is checked out: git checkout {TAG}."),
        (
            f"sed -i s/2026-01-01/unreleased/ CHANGELOG.md; {{commit}} -a; git tag -f {TAG}",
            *(TAG, f"CHANGELOG.md has no line '## [{millrace.__version__}] - YYYY-MM-DD'."),
        ),
    ],
)
def test_what_is_not_a_release_of_this_project_is_refused(ready, tmp_path, mistake, tag, line):
    run("cp", "-r", ready, tmp_path / "copy", cwd=ROOT)
    command = mistake.format(commit=COMMIT)
    subprocess.run(command, cwd=tmp_path / "copy", shell=True, check=True)
    code, text = release(tmp_path / "copy", tag)
    assert code == 1
    assert text.splitlines()[:2] == [f"{tag} cannot be released:", line]
    assert not (tmp_path / "copy" / "dist").exists()


def test_an_address_by_ssh_is_the_same_place(ready):
    for address in (SSH, REPOSITORY):
        run("git", "remote", "set-url", "origin", address, cwd=ready)
        assert release(ready, "v9.9")[1].count("\n") == 2


def test_the_sdist_has_every_file_of_the_repository(ready, files):
    """So all tests of both distributions can run in it: they read pages and examples of both."""
    with tarfile.open(files[0] / f"millrace-{millrace.__version__}.tar.gz") as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers()}
    _, committed = run("git", "ls-files", "-z", cwd=ready)
    assert names == {*committed.split("\0")} - {""} | {"PKG-INFO"}
