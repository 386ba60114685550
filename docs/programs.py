"""Writes into the guide pages the programs that they begin with, which are files in examples/.

`python docs/programs.py` after a change of an example; with `--run` also what each program prints.
A page names the file in a comment, before the block of Python that is the file without its
docstring. A block of text may follow, after one line: the output.
"""

import os
import pathlib
import re
import subprocess
import sys

DOCS = pathlib.Path(__file__).parent
PROGRAM = re.compile(
    r"^<!-- (?P<path>\S*examples/\S+\.py) -->\n```python\n(?P<code>.*?)^```\n"
    r"(?P<between>\n(?:[^`#|<\n][^\n]*\n\n)?(?=```text))?(?:```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


def written(page: str, run: bool = False) -> str:
    """Returns the text of a page with the present text, or also the output, of its programs."""

    def block(found: re.Match[str]) -> str:
        path, output = DOCS.parent / found["path"], found["output"]
        code = re.sub(r'\A""".*?"""\n+', "", path.read_text(), flags=re.DOTALL)
        if output is not None and run:
            environment = {**os.environ, "MILLRACE_CACHE_DIR": "off"}  # as in the tests
            command = [sys.executable, path]
            output = subprocess.check_output(command, text=True, env=environment)
        end = "" if output is None else f"{found['between']}```text\n{output}```\n"
        return f"<!-- {found['path']} -->\n```python\n{code}```\n{end}"

    return PROGRAM.sub(block, page)


if __name__ == "__main__":
    for file in sorted(DOCS.glob("*.md")):
        file.write_text(written(file.read_text(), run="--run" in sys.argv))
