"""The list of idioms in docs/porting.md agrees with the tests."""

from idioms import PAGE, idioms, page


def test_the_page_is_up_to_date():
    text = PAGE.read_text()
    assert page(text) == text, "Run python tests/millrace_ipu/porting/idioms.py."


def test_no_idiom_is_listed_twice():
    texts = [(each.group, each.text) for each in idioms()]
    assert len(set(texts)) == len(texts)
