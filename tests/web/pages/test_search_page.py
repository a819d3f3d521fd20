"""The search box: what a page without a result advises. The ways to a job are shown in a browser."""

from __future__ import annotations

import pytest

from tests.web.pages.fetching import get
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import create_app


@pytest.mark.parametrize(
    ("filters", "advises"), [((), True), (("meta.tenant",), True), (("meta.tenant", "data.to"), False)], ids=str
)
def test_search_without_a_result_says_how_the_data_of_jobs_are_searched(
    db: Database, filters: tuple[str, ...], advises: bool
) -> None:
    text = get(create_app(Monque(db), filters=filters), "/search?q=dana").text
    assert "No id or name is dana, and no key begins with it." in text
    assert ("start the dashboard with <code>--filter data.FIELD</code>" in text) == advises
