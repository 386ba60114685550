import importlib
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def mutants():
    sys.path.insert(0, str(HERE / "mutants"))
    yield importlib.import_module("run")
    sys.path.pop(0)
    for name in ("run", "table"):
        sys.modules.pop(name, None)


def test_each_mutant_changes_one_place_of_the_source(mutants):
    source = HERE.parent / "src" / "millrace"
    for mutant in mutants.MUTANTS:
        path = mutants.place_of(mutant, source)
        compile(path.read_text().replace(mutant.before, mutant.after), str(path), "exec")


def test_every_area_has_mutants_and_tests(mutants):
    assert {mutant.area for mutant in mutants.MUTANTS} == set(mutants.TESTS)
    assert len(mutants.MUTANTS) >= 60
    for path in (path for paths in mutants.TESTS.values() for path in paths):
        assert (HERE.parent / path).exists(), path


def test_a_mutant_whose_text_is_gone_is_named(mutants, tmp_path):
    with pytest.raises(LookupError, match=r"'x = 1' should stand in the source once.*no file"):
        mutants.place_of(mutants.Mutant("plan", "x = 1", "x = 2"), tmp_path)
