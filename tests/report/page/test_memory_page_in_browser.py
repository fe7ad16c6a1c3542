"""The page of a command's memory in a real browser: it draws each term, complains of nothing and asks for nothing."""

import pytest

from dynotune.report.page import memory_page

from ..browser import CHROMIUM, Browser
from ..test_memory_account import ACCOUNT

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


def test_each_term_is_drawn_and_nothing_is_loaded(tmp_path):
    page = tmp_path / "memory.html"
    memory_page.write(page, ACCOUNT)
    with Browser(tmp_path / "profile") as browser:
        browser.show(page, width=1200)
        assert browser.ask("document.querySelectorAll('.plot .scatterlayer .trace').length") == 2
        assert browser.said("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
        assert [said["request"]["url"] for said in browser.said("Network.requestWillBeSent")] == [page.as_uri()]
