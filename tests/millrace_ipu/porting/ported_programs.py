"""Programs as published ones are written: those that run, and those in which one thing fails.

A file of programs has texts after lines of `======== name`; a program of several files has the
others after lines of `-------- path`. The line that fails ends with `# fails`.
"""

import pathlib
import re

FOLDER = pathlib.Path(__file__).parent / "programs"
MARK = "# fails"


def programs(name):
    """Returns the files of each program in programs/<name>.txt, by the program's name."""
    texts = re.split(r"^======== (\w+)\n", (FOLDER / f"{name}.txt").read_text(), flags=re.M)
    return {key: _files(text) for key, text in zip(texts[1::2], texts[2::2], strict=True)}


def _files(text):
    parts = re.split(r"^-------- (\S+)\n", f"-------- program.py\n{text}", flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def write(files, folder):
    """Writes the files of a program, and returns its script."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder / "program.py"


def marked(files):
    """Returns the (path, line) that fails; None for a program that runs."""
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if line.endswith(MARK):
                return path, number
    return None
