import keras
import pytest

from millrace._compat.needed import check_names
from millrace.errors import MillraceError


def test_names_that_are_there():
    check_names({keras.Model: ("fit", "evaluate")})


def test_a_name_that_is_gone_is_said_with_the_version_to_install():
    with pytest.raises(MillraceError, match=rf"keras {keras.__version__} has no Model.fitt,.*3.15"):
        check_names({keras.Model: ("fit", "fitt")})
