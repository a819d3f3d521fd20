"""How the documentation is built: `sphinx-build -W --keep-going -b html docs docs/_build/html`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "trio_monque"
author = "The trio_monque authors"
project_copyright = author
pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
release = pyproject["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "trio_monque"
html_favicon = "../trio_monque/web/pages/static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]

# Links to headings, `page.md#heading`.
myst_heading_anchors = 3

# The one list of pages is in `index.md`: the navigation is made of it.
PAGE_GROUP = re.compile(r"^### (.+)\n\n((?:- .+\n)+)", re.MULTILINE)
PAGE_LINK = re.compile(r"^- \[[^\]]+\]\((\S+)\.md\)", re.MULTILINE)

# Entries of the index, which the search shows first, by page.
SEARCH_WORDS = tomllib.loads((Path(__file__).parent / "search-words.toml").read_text(encoding="utf-8"))

# Single backticks in docstrings are code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
# As a list within the class: autodoc gives the attributes that have docstrings entries of their own.
napoleon_use_ivar = True


# Napoleon reads "A sentence: and more" under an attribute as its type.
COLON_IN_TEXT = "\0 "


def hide_colons(_app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Before Napoleon: the first line of an attribute's docstring is text, and no type."""
    if what in ("attribute", "property"):
        lines[:1] = [line.replace(": ", COLON_IN_TEXT) for line in lines[:1]]


def show_colons(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """After Napoleon."""
    lines[:] = [line.replace(COLON_IN_TEXT, ": ") for line in lines]


def split_names(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """One entry for each of several attributes that share a description; Sphinx would read all but one as a type."""
    split: list[str] = []
    names: list[str] = []
    shared: list[str] = []

    def end_entry() -> None:
        for name in names:
            split.extend([f":ivar {name}:{shared[0]}", *shared[1:]])

    for line in lines:
        found = re.fullmatch(r":ivar (\w+(?:, \w+)+):(.*)", line)
        if found:
            end_entry()
            names, shared = found[1].split(", "), [found[2]]
        elif names and line.startswith(" "):
            shared.append(line)
        else:
            end_entry()
            names = []
            split.append(line)
    end_entry()
    lines[:] = split


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add a hidden table of contents for each group of the landing page's list, which plain Markdown shows as links."""
    if page == "index":
        for caption, links in PAGE_GROUP.findall(source[0]):
            entries = "\n".join(PAGE_LINK.findall(links))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n:maxdepth: 1\n\n{entries}\n```\n"


def add_search_words(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the page's words to the index, below its title: as main entries (`!`), which the search shows first."""
    if page in SEARCH_WORDS:
        title, rest = re.split(r"(?<=\n)(?=\n)", source[0], maxsplit=1)
        entries = ", ".join(f"!{word}" for word in SEARCH_WORDS[page])
        source[0] = f"{title}\n```{{index}} {entries}\n```\n{rest}"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_search_words)
    # Napoleon has the priority 500.
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    app.connect("autodoc-process-docstring", split_names, priority=600)
