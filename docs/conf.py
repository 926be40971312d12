"""Configuration of the documentation site: `make docs` builds it, and every warning is an error."""

from __future__ import annotations

import pkgutil
import re
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

from api_check import check_api  # noqa: E402 (beside this file)

import moreauc  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Source"]

project = "moreauc"
author = copyright = "the moreauc authors"
version = release = moreauc.__version__

extensions = [
    "myst_parser",  # pages are Markdown
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",  # docstrings of Google's style
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",  # brings MathJax: formulas need no network
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "reports",
    "images",
    "tutorials/*.py",
    "tutorials/*.ipynb",
    "tutorials/GALLERY_HEADER.rst",
]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]  # the gallery's settings hold a function

# Links. Every page lies in this folder, so a report has the same relative address in the site as in the repository.
# Names of other libraries and internal names have no page: see `keep_without_link`.
nitpicky = True
myst_enable_extensions = ["colon_fence", "dollarmath", "amsmath"]
myst_heading_anchors = 4
myst_url_schemes = {
    "http": None,
    "https": None,
    "mailto": None,
    "source": f"{REPOSITORY}/blob/main/{{{{path}}}}",
    "report": "{{path}}",
}

# The API reference
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Shape"]
default_role = "literal"
python_use_unqualified_type_names = True
autodoc_preserve_defaults = True
maximum_signature_line_length = 88

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def warnings_are_errors(gallery: object, file: object) -> None:
    """Let a tutorial fail by a warning; `plt.show` has no window to show figures in."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*non-interactive.*")


# Tutorials run here and nowhere else. Each ends with assertions of what it says, which the page does not show.
sphinx_gallery_conf = {
    "examples_dirs": "../examples/tutorials",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "parallel": 2,
    "reset_modules": ("matplotlib", warnings_are_errors),
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "first_notebook_cell": "# pip install moreauc",
}
warnings.filterwarnings("ignore", message=".*non-interactive.*")

# Looks
html_theme = "pydata_sphinx_theme"
html_title = "moreauc"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path: list[str] = []  # reports are copied below
html_show_sourcelink = False
html_copy_source = False
html_favicon = "_static/icon.svg"
html_theme_options = {
    "logo": {"text": "moreauc", "image_light": "_static/icon.svg", "image_dark": "_static/icon.svg"},
    "icon_links": [{"name": "Source", "url": REPOSITORY, "icon": "fa-brands fa-github"}],
    "header_links_before_dropdown": 7,
    "navbar_persistent": ["search-button"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
html_sidebars: dict[str, list[str]] = {"index": [], "get_started": [], "changelog": []}

logger = logging.getLogger(__name__)
_LINK = re.compile(r"\]\((\.\./|reports/)([^)\s#]+)(#[^)\s]*)?\)")
_NAMED = re.compile(r"\[(\w+\.md)\](?=\(\1[#)])")  # in the repository a link shows the file's name, here the title
_PAGE = re.compile(r"\bdocs/(\w+)\.md\b")


def link_to_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to files that are no pages lead to the repository (`../`) or to the reports beside the pages."""

    def target(match: re.Match[str]) -> str:
        start, path, anchor = match[1], match[2], match[3] or ""
        if not (DOCS / (start + path)).exists():
            logger.warning("%s: no file %s%s", page, start, path)
        if start == "../":
            return f"](source:{path}{anchor})"
        return match[0] if path.endswith(".png") else f"](report:{start}{path}{anchor})"

    if "/" not in page:
        source[0] = _NAMED.sub("[]", _LINK.sub(target, source[0]))


def link_included(app: Sphinx, file: Any, page: str, text: list[str]) -> None:
    """Let links of files of the root folder that a page includes lead to the pages of this folder."""
    text[0] = text[0].replace("](docs/", "](")


def link_to_pages(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make links of the pages that docstrings name."""
    lines[:] = [_PAGE.sub(r":doc:`/\1`", line) for line in lines]


def skip_foreign(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what torch, scikit-learn and others let our classes inherit."""
    module = getattr(obj, "__module__", None) or getattr(getattr(obj, "fget", None), "__module__", None)
    return True if what == "class" and module and not module.startswith("moreauc") else None


def keep_without_link(app: Sphinx, env: Any, node: Any, text: Any) -> Any:
    """Show references to other libraries and to internal names, which must exist, as text; all others are errors."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    if target.startswith("moreauc"):
        try:
            pkgutil.resolve_name(target)
        except (ImportError, AttributeError):
            return None
        return text
    ours = (module for name, module in sys.modules.items() if name.partition(".")[0] == "moreauc")
    return text if "." in target or any(hasattr(module, target) for module in ours) else None


def copy_reports(app: Sphinx, error: Exception | None) -> None:
    """Copy the reports that pages link to."""
    if error is not None:
        return
    for file in sorted((DOCS / "reports").rglob("*")):
        if file.suffix in (".html", ".json", ".jsonl", ".png") and file.name != "details.jsonl":
            copy = Path(app.outdir) / file.relative_to(DOCS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())


def check_names(app: Sphinx) -> None:
    """Stop if a public name or an argument is not documented, or a name is missing in the pages."""
    found = check_api("\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")))
    logger.info(
        "public names: %d documented, %d not; arguments: %d", found.documented, len(found.problems), found.arguments
    )
    if found.problems:
        raise ExtensionError("the API reference is not complete:\n" + "\n".join(found.problems))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions above."""
    app.connect("builder-inited", check_names)
    app.connect("source-read", link_to_files)
    app.connect("include-read", link_included)
    app.connect("autodoc-process-docstring", link_to_pages)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("missing-reference", keep_without_link)
    app.connect("build-finished", copy_reports)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
