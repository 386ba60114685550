"""What package indexes and GitHub show of both distributions: metadata, versions, extras, forms."""

import datetime as dt
import pathlib
import re
import sys
import tomllib

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from markdown_it import MarkdownIt
from packaging.requirements import Requirement

import millrace
import millrace_ipu

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = {"millrace": ROOT, "millrace-ipu": ROOT / "millrace-ipu"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.fixture(scope="module")
def core():
    """The metadata of each distribution, as its build writes it."""
    return {name: ProjectMetadata(str(at), PluginManager()).core for name, at in FOLDERS.items()}


def file_of(link):
    """The file of this repository that a link into it names; None for other places there."""
    found = re.fullmatch(rf"{REPOSITORY}/(?:blob|tree|raw)/[^/]+/([^#?]+)(?:#.*)?", link)
    return ROOT / found[1] if found else None


def test_every_place_has_the_same_version(core):
    newest = re.search(r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    versions = {
        *(millrace.__version__, millrace_ipu.__version__, citation["version"], newest[1]),
        *(each.version for each in core.values()),
    }
    assert versions == {millrace.__version__}
    assert core["millrace-ipu"].dependencies == [f"millrace=={millrace.__version__}"]
    if newest[2] == "unreleased":
        assert "date-released" not in citation
    else:
        assert citation["date-released"] == dt.date.fromisoformat(newest[2])


@pytest.mark.parametrize("name", FOLDERS)
def test_the_long_description_leads_somewhere_from_anywhere(core, name):
    tokens = MarkdownIt().enable("table").parse(core[name].readme)
    parts = [part for token in tokens for part in token.children or ()]
    links = [part.attrs[at] for part in parts for at in ("href", "src") if at in part.attrs]
    assert links
    for link in links:
        assert link.startswith("https://"), link
        if link.startswith(REPOSITORY):
            assert file_of(link).exists(), link
            assert f"/v{millrace.__version__}/" in link
    for picture in (part.attrs["src"] for part in parts if part.type == "image"):
        assert picture.startswith(f"{REPOSITORY}/raw/v")
    # Nothing that only a page within the repository could resolve, in HTML either.
    assert not re.findall(r'(?:src|href|srcset)="(?!https://)', core[name].readme)


@pytest.mark.parametrize("name", FOLDERS)
def test_both_have_the_addresses_of_the_project(core, name):
    assert core[name].urls == PROJECT["urls"]
    assert set(core[name].urls) == {
        *("Homepage", "Documentation", "Repository", "Issues", "Changelog")
    }
    for address in core[name].urls.values():
        assert address.startswith(REPOSITORY)
        assert file_of(address) is None or file_of(address).exists(), address


def test_the_addresses_are_written_once():
    texts = [ROOT / "hatch_build.py", *ROOT.glob("*.md"), *ROOT.glob("millrace-ipu/*.*")]
    for path in [*texts, *FORMS, *ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md")]:
        assert REPOSITORY not in path.read_text(), path


IMPORT = re.compile(
    r"""^\s*import (\w+)[\w.]*(?: as \w+)?$|^\s*from (\w+)[\w.]* import |import_module\("(\w+)""",
    re.MULTILINE,
)


# Named otherwise than their packages, or brought along by these.
DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "IPython": "jupyterlab",
    "keras_hub": "keras-hub",
    "tensorflow": "tensorflow-cpu",
    "jaxlib": "jax",
    "ml_dtypes": "jax",
    "typing_extensions": "keras",
}


def test_an_extra_has_what_each_example_and_each_module_imports():
    extras = PROJECT["optional-dependencies"].values()
    listed = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    known = {Requirement(each).name for each in listed}
    known |= {"__future__", "millrace", "millrace_ipu", *sys.stdlib_module_names}
    known |= {path.stem for path in ROOT.glob("benchmarks/*.py")}  # those that examples share
    found = set()
    for folder in ("src", "examples", "millrace-ipu/src", "millrace-ipu/examples"):
        for path in (ROOT / folder).rglob("*.py"):
            tops = {top for row in IMPORT.findall(path.read_text()) for top in row if top}
            tops = {DISTRIBUTIONS.get(top, top) for top in tops}
            tops -= {each.stem for each in path.parent.glob("*.py")}  # an example beside this one
            assert tops <= known, (path, tops - known)
            found |= tops
    assert {"keras", "scikit-learn", "tensorboard", "ray", "tensorflow-cpu"} <= found


TEXTS = [
    path
    for folder in ("src", "millrace-ipu", "examples", "docs")
    for path in (ROOT / folder).rglob("*.*")
    if path.suffix in {".py", ".md", ".js", ".sh", ".yaml"} and "decisions" not in path.parts
]


def test_every_extra_that_a_text_names_exists(core):
    named = set()
    for path in (*TEXTS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for name, extras in re.findall(r"\b(millrace(?:-ipu)?)\[([\w,-]+)\]", path.read_text()):
            named |= {(name, extra) for extra in extras.split(",")}
    assert {("millrace", "tensorboard"), ("millrace-ipu", "tensorboard")} <= named
    for name, extra in named:
        assert extra in core[name].optional_dependencies


def test_an_error_that_asks_for_a_package_names_the_extra():
    commands = [
        (path.name, command)
        for path in TEXTS
        if path.suffix == ".py"
        for command in re.findall(r"pip install ([^\n]{3,30})", path.read_text())
    ]
    assert commands
    for name, command in commands:
        # These two are about the versions of Keras and JAX, which no extra has.
        if name not in {"errors.py", "versions.py"}:
            assert re.match(r"""["']millrace(-ipu)?\[""", command), (name, command)


def test_the_citation_has_what_its_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "abstract"} <= set(citation)
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_is_one_that_github_shows(path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form == {"blank_issues_enabled": False}
        return
    assert set(form) <= {"name", "description", "labels", "body"}
    assert form["name"]
    assert form["description"]
    inputs = [each for each in form["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in inputs}) == len(inputs) > 0
    for each in inputs:
        assert each["type"] in {"input", "textarea", "dropdown", "checkboxes"}
        assert each["attributes"]["label"]


def test_the_forms_are_for_bugs_features_and_questions():
    assert [path.stem for path in FORMS] == ["bug", "config", "feature", "question"]
    bug = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
    assert "millrace --version" in bug
