"""Private names of Keras and JAX, one file for each purpose; nothing else in millrace uses any.

All are listed in `names.py`. This file is run before any other one of the package, and so before
a name that is missing could end in a bare ImportError.
"""

from millrace._compat.versions import check

check()
