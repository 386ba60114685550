"""Private names of Keras and JAX, one file for each purpose; no other package uses any.

All are listed in `names.py`. The check below runs before any other file of the package: a name
that is missing would otherwise end in a bare ImportError.
"""

from millrace._compat.versions import check

check()
