from concurrent.futures import ThreadPoolExecutor

from millrace.base.threads.scoped_value import Notes


def test_a_note_is_new_once():
    notes = Notes()
    assert [notes.is_new(note) for note in "aba"] == [True, True, False]
    notes.clear()
    assert notes.is_new("a")


def test_of_all_threads_one_comes_first():
    notes = Notes()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: notes.is_new(str(k // 8)), range(800)))
    assert sum(found) == 100
