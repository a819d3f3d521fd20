"""Links of Markdown pages lead to files and headings that exist, as they are read without a documentation builder.

The links of the built site, with those that autodoc makes, are in tests/browser/test_documentation_site.py.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

from tests.support.pages import DOCS, PAGES
from tests.support.programs import ROOT


@cache
def prose(page: Path) -> str:
    """The page without its code and comments."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of its headings, as GitHub and MyST make them."""
    seen = Counter[str]()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


def wrong_links(page: Path) -> list[str]:
    """The links of the page that lead to no file, or to no heading of a Markdown page."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            wrong.append(f"{page.relative_to(ROOT)}: {link}")
    return wrong


def test_links_lead_to_files_and_headings() -> None:
    pages = [*ROOT.glob("*.md"), *PAGES]
    assert {page.name for page in pages} > {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "index.md"}
    assert [link for page in pages for link in wrong_links(page)] == []


def test_landing_page_lists_each_page_once() -> None:
    """A page in a folder of the reference or of the decisions is listed by the index page of that folder."""
    text = (DOCS / "index.md").read_text(encoding="utf-8").partition("## All pages")[2]
    listed = re.findall(r"^- \[[^\]]+\]\((\S+)\)", text, re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES]
    folders = ("reference/", "explanation/decisions/")
    expected = [page for page in pages if page.endswith("/index.md") or not page.startswith(folders)]
    expected.remove("index.md")
    assert sorted(listed) == sorted(expected)


def test_words_to_search_for_are_of_pages_that_exist_and_each_of_one_page() -> None:
    words_of = tomllib.loads((DOCS / "search-words.toml").read_text(encoding="utf-8"))
    assert [page for page in words_of if not (DOCS / f"{page}.md").is_file()] == []
    words = Counter(word.lower() for words in words_of.values() for word in words)
    assert [word for word, times in words.items() if times > 1] == []
    searched = {"visibility timeout", "dead letter", "rate limit", "requeue", "graceful shutdown", "worker process"}
    assert searched | {"polling", "backpressure"} <= words.keys()
    # These have a meaning of their own in a directive of Sphinx.
    assert [word for word in words if re.search(r"[,;!]", word)] == []
