"""The page of a run, or of two side by side: one HTML file that needs nothing else.

    records -> page_data.py -> JSON, and columns of numbers (columns.py)
    assets/*.css, *.js      -> style and script, once
    assets/page.html        -> all of it put together

The page loads nothing, and its policy forbids it: only the one style and the one script whose
hashes it names may run. Whatever a user has named, a layer say, is data in it and never markup.
"""

import base64
import contextlib
import hashlib
import html
import json
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from millrace.base.collector import fewer_collections
from millrace.base.records.run import RunRecords
from millrace.errors import OptionError
from millrace.tools.reports.assets import read, script, style
from millrace.tools.reports.columns import Columns
from millrace.tools.reports.page_data import page_data, title_of

_FIELD = re.compile(r"\{\{(\w+)\}\}")
_OF_TAGS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page(runs: Sequence[RunRecords]) -> str:
    """Returns the page of a run as HTML; of two, to compare them.

    Args:
        runs: one run, or two.

    Raises:
        OptionError: if there are none, or more than two.
    """
    if isinstance(runs, RunRecords) or not 1 <= len(runs) <= 2:
        number = "a run that is in no list" if isinstance(runs, RunRecords) else str(len(runs))
        raise OptionError(
            f"A page shows one run, or two side by side. Received: {number}. "
            "Give a list: page([run]) or page([run, other])."
        )
    columns = Columns()
    # A collector that visits all spans again and again takes a third of the time.
    with fewer_collections(), np.errstate(all="ignore"):
        data = page_data(runs, columns)
    values = {
        # Names of files may have bytes that are no text, which Python keeps as lone surrogates.
        "title": html.escape(title_of(runs)).encode(errors="replace").decode(),
        "policy": _policy(style(), script()),
        "style": style(),
        "licence": html.escape(read("uplot.LICENSE")),
        "data": _json(data),
        "columns": columns.text(),
        "script": script(),
    }
    return _FIELD.sub(lambda field: values[field[1]], read("page.html"))


def write_page(runs: Sequence[RunRecords], path: str | pathlib.Path) -> pathlib.Path:
    """Writes the page of a run, or of two; a page that is there is replaced in one go.

    Args:
        runs: one run, or two.
        path: of the file. Its directory is made.

    Returns:
        The path.

    Raises:
        OptionError: if it cannot be written, or there are not one or two runs.
    """
    path = pathlib.Path(path)
    text = page(runs).encode(errors="replace")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # its directory may be a file
            part.unlink()
        raise OptionError(
            f"The page cannot be written to {str(path)!r}: {error}. Give the path of a file in a "
            "directory that can be written to."
        ) from error
    return path


def _json(data: object) -> str:
    """Returns JSON of ASCII characters, without those that could end or begin a tag."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda found: _OF_TAGS[found[0]], text)


def _policy(css: str, js: str) -> str:
    """Returns a Content-Security-Policy: nothing but this style and this script."""
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
