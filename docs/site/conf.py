"""The documentation as a site, made by `make docs`.

pages.py       gathers the Markdown pages of the repository, and turns their links into the site's
reference.py   lists the public names of both packages, for autodoc
"""

import pathlib
import sys
import tomllib

_HERE = pathlib.Path(__file__).parent
ROOT = _HERE.parent.parent
sys.path[:0] = [str(_HERE), str(ROOT / "src"), str(ROOT / "millrace-ipu" / "src")]

import millrace  # noqa: E402

with open(ROOT / "pyproject.toml", "rb") as _file:
    _project = tomllib.load(_file)["project"]

project = _project["name"]
release = version = millrace.__version__
repository = _project["urls"]["Repository"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "pages",
    "reference",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

smartquotes_action = "q"  # the two dashes of an option stay two
myst_heading_anchors = 4  # as on code hosts

# Docstrings set names in single backticks: a link where there is such a name, else code.
default_role = "py:obj"
napoleon_use_ivar = True  # attributes in a docstring are no entries of their own
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
# Not nitpicky: the types of Keras, JAX and NumPy have no index that is at hand offline.

html_show_search_summary = False  # a page that is read from a disk may not fetch others
html_search_scorer = str(_HERE / "scorer.js")
html_theme = "furo"
html_title = f"millrace {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = "$ "
