"""The table of docs/porting.md agrees with the tests."""

import importlib.util
import pathlib

_SPEC = importlib.util.spec_from_file_location(
    "coverage_table", pathlib.Path(__file__).with_name("coverage_table.py")
)
coverage = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(coverage)


def test_every_feature_has_a_test():
    assert list(coverage.TITLES) == list(range(1, 76))
    assert coverage.missing() == []


def test_the_page_is_up_to_date():
    text = coverage.PAGE.read_text()
    assert coverage.page(text) == text, "Run python tests/millrace_ipu/ipu/coverage_table.py."


def test_what_is_only_tested_on_an_accelerator_is_marked(tmp_path, monkeypatch):
    (tmp_path / "test_some.py").write_text(
        "@pytest.mark.gpu\ndef test_f47_on_one(): ...\ndef test_f48_on_any(): ...\n"
        "@pytest.mark.gpu\ndef test_f48_on_one(): ...\n"
    )
    (tmp_path / "test_all.py").write_text("pytestmark = pytest.mark.gpu\ndef test_f49_a(): ...\n")
    monkeypatch.setattr(coverage, "TESTS", tmp_path)
    assert coverage.tests() == {
        47: {"test_some.py": True},
        48: {"test_some.py": False},
        49: {"test_all.py": True},
    }
    rows = coverage.table().splitlines()
    assert rows[2 + 46].endswith("| tested: `test_some.py` (on an accelerator) |")
    assert rows[2 + 47].endswith("| tested: `test_some.py` |")
    assert rows[2 + 49].endswith("| not tested |")
