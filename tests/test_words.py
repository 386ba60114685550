"""The words that names are made of: plain English, terms of the field, or defined in docs/index.md.

`words.txt` lists the plain words and the terms of Python, JAX, Keras, XLA and of papers on
pipelines. A new word is added there, if it is one of these, or defined in docs/index.md#words.
"""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
SOURCE = ROOT / "src" / "millrace"
# These carry the names of others: Graphcore's and TensorFlow's.
OF_OTHERS = ("ipu", "tensorflow")
INSTEAD = {
    "making": "compile, or what it makes",
    "outlet": "outfeed queue",
    "place": "index, device, or put on a device",
    "rests": "offloaded",
    "settle": "reduce_replicas",
    "turn": "iteration",
    "window": "update steps",
}


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in OF_OTHERS:
            yield path, ast.parse(path.read_text())


def assigned(node):
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [
        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
    ]


def names_of(tree):
    """The module-level names, and the public members of classes."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield from assigned(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                    yield member.name


def words_of(name):
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def used_words():
    """Of each word, one name that has it."""
    used = {}
    for path, tree in modules():
        module = path.relative_to(SOURCE).with_suffix("")
        for name in [*module.parts, *names_of(tree)]:
            for word in words_of(name):
                used.setdefault(word, f"{module}: {name}")
    return used


def defined_words():
    text = (ROOT / "docs" / "index.md").read_text().partition("## Words")[2]
    terms = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return {word for term in terms[2:] for word in words_of(term)}


def listed_words():
    text = (pathlib.Path(__file__).parent / "words.txt").read_text()
    return [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]


def stem(word):
    """The word without its ending, so that a verb and its forms count as one word."""
    for ending in ("ing", "ed", "er", "ers", "es", "s", "e"):
        if len(word) > len(ending) + 2 and word.endswith(ending):
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def test_every_word_of_a_name_is_plain_or_defined():
    listed = set(listed_words())
    defined = {stem(word) for word in defined_words()}
    unknown = {
        word: where
        for word, where in used_words().items()
        if word not in listed and stem(word) not in defined
    }
    assert unknown == {}, "add it to tests/words.txt, if plain or standard, or to docs/index.md"


def test_the_list_has_no_word_too_many():
    listed = listed_words()
    assert sorted(set(listed) - set(used_words())) == []
    assert len(listed) == len(set(listed))
    assert sorted({word for word in listed if word in INSTEAD}) == []


def test_every_defined_word_is_used():
    """In a name, or in what users read."""
    text = " ".join(path.read_text() for path in ROOT.glob("docs/*.md")).lower()
    used = {stem(word) for word in used_words()}
    assert [w for w in defined_words() if stem(w) not in used and text.count(w) < 3] == []


def is_type_variable(value):
    """Whether it is one, whose name is only for its module."""
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in ("TypeVar", "ParamSpec")


def test_no_class_has_the_name_of_another():
    seen, twice = {}, []
    for path, tree in modules():
        for node in tree.body:
            names = []
            if isinstance(node, ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign | ast.AnnAssign) and not is_type_variable(node.value):
                names = [name for name in assigned(node) if re.match(r"_?[A-Z]\w*[a-z]", name)]
            for name in names:
                where = str(path.relative_to(SOURCE))
                if seen.setdefault(name, where) != where:
                    twice.append(f"{name}: {seen[name]}, {where}")
    assert twice == []
