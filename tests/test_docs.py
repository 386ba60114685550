"""README, the pages in docs/, and what they lead to."""

import os
import pathlib
import re
import runpy
import subprocess
import sys
import tomllib

import keras
import pytest
from packaging.version import Version

ROOT = pathlib.Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")

PLAIN = """
keras.utils.set_random_seed(0)
hidden = [keras.layers.Dense(64, "tanh") for _ in range(3)]
model = keras.Sequential([*hidden, keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
history = model.fit(x, x.sum(axis=1), batch_size=64, epochs=5, verbose=0)
print("loss:", *(f"{loss:.3f}" for loss in history.history["loss"]))
"""


def headings(page):
    """The anchors of a page, as GitHub makes them of its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        yield re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def broken(page):
    """The links of a page that lead nowhere."""
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in headings(target):
            yield f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert list(broken(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# On `fit`, twice\n[a](no.md) [b](#on-fit-twice) [c](page.md#fit) [d](a://b)\n"
    )
    assert list(broken(page)) == [
        "no.md: there is no such file",
        "page.md#fit: page.md has no such heading",
    ]


REFERENCE = {
    *(
        "api",
        "benchmarks",
        "commands",
        "errors",
        "faq",
        "gpu",
        "how_it_works",
        "index",
        "lost_state",
        "models",
        "options",
    ),
    *("patches", "versions", "words", "works_with"),
}
GUIDES = [page for page in sorted(ROOT.glob("docs/*.md")) if page.stem not in REFERENCE]
PROGRAMS = runpy.run_path(str(ROOT / "docs" / "programs.py"))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_begins_with_a_program_of_the_examples(page):
    title, lead, rest = page.read_text().split("\n\n", 2)
    assert title.startswith("# ")
    assert len(re.findall(r"[.?!](?=\s|$)", lead)) <= 2
    found = PROGRAMS["PROGRAM"].match(rest)
    assert found, "the program comes after at most two sentences"
    assert re.search(r"^(import millrace|from millrace)", found["code"], re.MULTILINE)
    assert len(found["code"].splitlines()) <= 50
    assert PROGRAMS["written"](page.read_text()) == page.read_text(), "run docs/programs.py"


def test_the_index_lists_every_page():
    listed = set(LINK.findall((ROOT / "docs" / "index.md").read_text()))
    pages = {path.name for path in ROOT.glob("docs/*.md")} - {"index.md"}
    assert sorted(pages - listed) == []


@pytest.mark.every_share
@pytest.mark.slow
def test_the_readme_prints_what_it_says_and_what_plain_keras_prints(tmp_path):
    text = README.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(code + PLAIN)
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path / "empty",
        # Without what the tests set up for themselves: as a user would run it.
        env={name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found, plain = done.stdout.splitlines()
    assert found == plain
    if Version(keras.__version__).release < (3, 16):  # draws other initial weights
        assert f"{found}\n" == printed
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("library", ["Python", "Keras", "JAX"])
def test_the_versions_in_the_readme_are_those_that_install(library):
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    specs = [*project["dependencies"], f"python{project['requires-python']}"]
    (spec,) = [spec for spec in specs if spec.startswith(library.lower())]
    row = re.search(rf"^\| {library} \| ([\d.]+) to ([\d.]+)", README.read_text(), re.MULTILINE)
    first, last = row.groups()
    assert f">={first}" in spec
    if library == "Python":
        assert f"Programming Language :: Python :: {last}" in project["classifiers"]
    elif "<" in spec:
        major, minor = last.split(".")
        assert spec.endswith(f",<{major}.{int(minor) + 1}")


def test_the_example_in_the_readme_is_about_ten_lines():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_without_gaps_and_indexed():
    numbers = [int(path.name.split("-")[0]) for path in DECISIONS]
    assert numbers == list(range(1, len(DECISIONS) + 1))
    titles = [path.read_text().splitlines()[0] for path in DECISIONS]
    rows = re.findall(
        r"^\| (\d+) \| \[(.*)\]\((.*)\) \|$",
        (ROOT / "docs" / "decisions" / "README.md").read_text(),
        re.MULTILINE,
    )
    assert [f"# {number}. {title}" for number, title, _ in rows] == titles
    assert [name for *_, name in rows] == [path.name for path in DECISIONS]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_says_whether_it_holds_why_and_what_shows_it(path):
    text = path.read_text()
    assert re.findall(r"^\*\*(\w+):\*\* \S", text, re.MULTILINE) == ["Status", "Why", "Evidence"]
    assert sorted(stale_paths(text)) == []


def stale_paths(text):
    """The files in folders that a text names and that are not there."""
    for name in re.findall(r"(?<![\w./-])[\w.-]+(?:/[\w.-]+)+\.(?:py|md|txt)\b", text):
        folders = (ROOT, ROOT / "src" / "millrace", ROOT / "millrace-ipu" / "src" / "millrace_ipu")
        if not any((folder / name).exists() for folder in folders):
            yield name


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_pages_for_developers_name_files_that_are_there(name):
    assert sorted(stale_paths((ROOT / name).read_text())) == []


def test_a_file_that_is_gone_is_found():
    text = "`programs/feeds/block.py`, feeds/no.py | tests/test_docs.py and `tests/no.py`, block.py"
    assert sorted(stale_paths(text)) == ["feeds/no.py", "tests/no.py"]


def test_every_error_is_in_its_tree_and_on_its_page():
    page = (ROOT / "docs" / "errors.md").read_text()
    errors = (ROOT / "src" / "millrace" / "errors.py").read_text()
    tree = errors.split('"""')[1]
    for name in re.findall(r"^class (\w+)\(", errors, re.MULTILINE):
        assert re.search(rf"\b{name}\b", tree), name
        assert f"`{name}`" in page or f"`millrace.errors.{name}`" in page, name
