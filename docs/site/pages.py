"""Writes the sources of the site: the repository's Markdown pages, its examples, its reference.

A page of the repository keeps its links for readers on a code host. Here a link to a page or an
example becomes one to its page of the site, and any other link to a file becomes one to the
repository. A link that leads nowhere is a warning, which `make docs` takes as an error.

The navigation is that of docs/index.md: each heading there that is a link is a guide, with the
pages of its table below it; each other heading with a table is a part of the navigation.
"""

import ast
import os
import pathlib
import re
import shutil
import urllib.parse
from collections.abc import Iterator

import reference
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = pathlib.Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = (*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("decisions/*.md"))
EXAMPLES = (*ROOT.glob("examples/*.py"), *ROOT.glob("millrace-ipu/examples/*.py"))
_CODE = re.compile(r"(^```.*?^```|^ {4}.*?$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_ELEMENT = re.compile(r"<(td|h\d)\b.*?</\1>", re.DOTALL)
_NAME = re.compile(r"(?<=>)[^<>]+")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMANDS = """
```{eval-rst}
.. click:: millrace.tools.cli.main:main
   :prog: millrace
   :nested: full
```
"""
# For pages that the navigation leaves out, since each page of the site has all of it.
_ORPHAN = "---\norphan: true\n---\n\n"
_LOGGER = logging.getLogger(__name__)


def source_of(path: pathlib.Path) -> str:
    """Returns the name, in the sources of the site, of a page or an example."""
    if path == ROOT / "examples":
        return "examples/index.md"
    name = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT)
    if name.name == "README.md":
        name = name.with_name("index.md" if name.parent.name else "readme.md")
    return str(name.with_suffix(".md")).replace("millrace-ipu/examples", "examples/ipu")


def with_links(text: str, page: pathlib.Path, address: str) -> str:
    """Returns a page with the links that lead out of docs/ as the site has them."""
    site = {path: source_of(path) for path in (*PAGES, *EXAMPLES, ROOT / "examples")}
    here = pathlib.Path(source_of(page)).parent

    def link(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        target = pathlib.Path(os.path.normpath(page.parent / path))
        if "://" in path or not path:
            return match[0]
        if target in site:
            return f"]({os.path.relpath(site[target], here)}{mark}{anchor})"
        if target.is_relative_to(DOCS / "images"):
            return f"]({os.path.relpath(target.relative_to(DOCS), here)})"
        if not target.exists():
            _LOGGER.warning("%s: %s leads nowhere", page.relative_to(ROOT), match[1])
        kind = "tree" if target.is_dir() else "blob"
        name = urllib.parse.quote(str(target.relative_to(ROOT)))
        return f"]({address}/{kind}/main/{name}{mark}{anchor})"

    parts = _CODE.split(text)  # code at the odd places
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def navigation(index: str) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yields the headings of the index: title, page of a guide or None, entries of its table."""
    for heading, body in re.findall(r"^## (.+)$((?:\n(?!## ).*)*)", index, re.MULTILINE):
        rows = re.findall(r"^\| \[([^\]]*)\]\(([^)#]+)\.md\) \|", body, re.MULTILINE)
        pages = [f"{title} <{page}>" for title, page in rows]
        guide = re.fullmatch(r"\[(.*)\]\((.*)\.md\)", heading)
        if guide:
            yield guide[1], guide[2], pages
        elif pages:
            yield heading, None, pages


def toctree(pages: list[str], caption: str = "", option: str = ":hidden:") -> str:
    """Returns a directive that puts pages into the navigation, and shows nothing itself.

    With another option, such as `:maxdepth: 1`, it also lists their titles.
    """
    lines = ["```{toctree}", option, *([f":caption: {caption}"] if caption else []), *pages]
    return "\n\n" + "\n".join([*lines, "```"]) + "\n"


def example_page(path: pathlib.Path, address: str) -> str:
    """Returns the page of an example: its docstring, and its code."""
    code = re.sub(r'\A""".*?"""\n+', "", path.read_text(), flags=re.DOTALL)
    name = path.relative_to(ROOT)
    return (
        f"{_ORPHAN}# {path.name}\n\n{docstring(path)}\n\n"
        f"[`{name}`]({address}/blob/main/{name})\n\n```python\n{code}```\n"
    )


def docstring(path: pathlib.Path) -> str:
    """Returns the docstring of a program."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def examples_page() -> str:
    """Returns the list of all examples, with the first paragraphs of their docstrings."""
    text = "# Examples\n\nEach takes `--small`, and the tests run it.\n\n"
    for path in sorted(EXAMPLES):
        first = docstring(path).partition("\n\n")[0].replace("\n", " ")
        text += f"- [`{path.relative_to(ROOT)}`](/{source_of(path)}): {first}\n"
    return text


def sources(address: str) -> dict[str, str]:
    """Returns all sources of the site by name, but for the pictures."""
    texts = {source_of(path): with_links(path.read_text(), path, address) for path in PAGES}
    for name in texts:
        if re.match(r"decisions/\d", name):
            texts[name] = _ORPHAN + texts[name]
    texts |= {source_of(path): example_page(path, address) for path in EXAMPLES}
    texts["examples/index.md"] = examples_page()
    texts |= (api := reference.pages())
    modules = [f"/{name.removesuffix('.rst')}" for name in api]
    texts["api.md"] += toctree(modules, option=":maxdepth: 1")
    texts["commands.md"] += _COMMANDS
    index = texts["index.md"]
    program = re.search(
        r"^```python\n.*?^```text\n.*?^```$", texts["readme.md"], re.DOTALL | re.MULTILINE
    )
    if program:
        texts["index.md"] = re.sub("<!-- first program.*?-->", lambda _: program[0], index)
    trees: dict[str, str] = {}
    guides: list[str] = []
    for title, guide, entries in navigation(index):
        if guide is None:
            trees[title] = toctree(entries, title)
        else:
            guides.append(f"{title} <{guide}>")
            trees["Guides"] = toctree(guides, "Guides")
            texts[f"{guide}.md"] = texts.get(f"{guide}.md", "") + toctree(entries)
    texts["index.md"] += "".join(trees.values())
    return texts


def write_sources(app: Sphinx) -> None:
    """Writes the sources into their folder."""
    folder = pathlib.Path(app.srcdir)
    shutil.copytree(DOCS / "images", folder / "images", dirs_exist_ok=True)
    for name, text in sources(app.config.repository).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def name_languages(app: Sphinx, doctree: nodes.document) -> None:
    """Marks blocks of code without a language as Python, or as text where they are not."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") in (None, "default"):
            block["language"] = reference.language(block.astext())


def set_dashes(app: Sphinx, doctree: nodes.document) -> None:
    """Sets a dash between an argument and its meaning, where Sphinx writes two hyphens."""
    for text in [each for each in doctree.findall(nodes.Text) if each == " -- "]:
        text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def break_names(
    app: Sphinx, page: str, template: str, context: dict[str, object], doctree: object
) -> None:
    """Lets a long name in a table or a heading break after an underscore or a dot."""

    def with_breaks(element: re.Match[str]) -> str:
        return _NAME.sub(lambda text: re.sub(r"[_.](?=[a-z])", r"\g<0><wbr>", text[0]), element[0])

    context["body"] = _ELEMENT.sub(with_breaks, str(context.get("body", "")))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_config_value("repository", "", "env")
    app.connect("builder-inited", write_sources)
    app.connect("doctree-read", name_languages)
    app.connect("doctree-read", set_dashes)
    app.connect("html-page-context", break_names)
    return {"parallel_read_safe": True}
