"""A name in a list that no test has is an error, where all of its file was collected."""

import pathlib
import types

import pytest

from marked_tests import MarkedTests


def item(nodeid):
    marks = []
    return types.SimpleNamespace(nodeid=nodeid, marks=marks, add_marker=marks.append)


def plugin(root, args, ignore=None):
    (root / "tests").mkdir()
    (root / "tests" / "slow_tests.txt").write_text(
        "# Why\ntests/a.py::test_gone\ntests/a.py::test_x\n"
    )
    return MarkedTests(
        types.SimpleNamespace(
            rootpath=root,
            args=args,
            invocation_params=types.SimpleNamespace(dir=pathlib.Path(root)),
            getoption=lambda name: ignore,
        ),
        "slow",
    )


@pytest.mark.parametrize("args", [["tests"], ["tests/a.py"], ["tests/b.py", "tests/a.py"]])
def test_a_name_without_a_test_is_an_error(tmp_path, args):
    items = [item("tests/a.py::test_x"), item("tests/a.py::test_y")]
    with pytest.raises(pytest.UsageError, match=r"not there:\ntests/a\.py::test_gone$"):
        plugin(tmp_path, args).pytest_collection_modifyitems(items)
    assert [len(found.marks) for found in items] == [1, 0]


@pytest.mark.parametrize(
    ("args", "ignore"),
    [(["tests/b.py"], None), (["tests/a.py::test_x"], None), (["tests"], ["tests/a.py"])],
    ids=["other-file", "single-test", "ignored"],
)
def test_nothing_is_said_of_files_that_were_not_collected_whole(tmp_path, args, ignore):
    found = item("tests/a.py::test_x")
    plugin(tmp_path, args, ignore).pytest_collection_modifyitems([found])
    assert len(found.marks) == 1
