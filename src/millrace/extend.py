"""The seam for packages that put another library's words on top of millrace."""

from millrace.own_code import add_own_package as add_own_package
from millrace.own_code import is_own_file as is_own_file
from millrace.own_code import is_own_module as is_own_module
