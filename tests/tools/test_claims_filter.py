"""The page of claims with filters: what stands in it, what it does in Chromium, and what strange bundles
cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import docs_site
import msgspec
import pytest
from claims_page import RESULTS, html_page

from dynotune.claims import all_claims, read, write
from dynotune.schema.claims import Bundle, Evidence

from ..report.browser import CHROMIUM, Browser

PAGE = Path(__file__).parents[2] / "docs/reference/claims-filter.html"
HOSTILE = (
    "</script><script>window.alerted=1</script>"
    "<img src=x onerror=alerted=1>\" onfocus='alerted=1' {{7*7}} \x1b[31m\u202e"
)
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
SEEN = """(() => ({
  shown: [...document.querySelectorAll("article")].filter((one) => one.checkVisibility()).map((one) => one.id),
  headings: [...document.querySelectorAll("h2")].filter((one) => one.checkVisibility()).length,
  status: document.querySelector("[role=status]").textContent,
  hash: location.hash,
  form: Object.fromEntries(new FormData(document.querySelector("form"))),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  paper: getComputedStyle(document.body).backgroundColor,
  alerted: "alerted" in window,
}))()"""  # noqa: E501


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def hostile(folder: Path) -> Path:
    """A folder with a bundle that has a strange text wherever it may have any."""
    kept, _ = read(RESULTS / "claims_cpu.json")
    # Of another program, so that nothing of it can be judged again.
    evidence = [
        Evidence(id=claim.id, verdict="refuted", seen=HOSTILE, program=HOSTILE, command=[HOSTILE])
        for claim in all_claims()
    ]
    facts: dict[str, Any] = {**dict.fromkeys(kept.facts, HOSTILE), HOSTILE: HOSTILE}
    unknown = Evidence(id=HOSTILE, verdict="holds", seen=HOSTILE)
    write(folder / "claims_\"'><b>.json", Bundle(version=HOSTILE, facts=facts, evidence=[*evidence, unknown]))
    return folder


def see(
    browser: Browser, page: Path, *, width: int = 1600, dark: bool = False, hash: str = ""
) -> dict[str, Any]:
    browser.show(page, width=width, dark=dark)
    if hash:
        change = (
            "new Promise((done) => { addEventListener('hashchange', () => setTimeout(done)); "
            "location.hash = hash; })"
        )
        browser.ask(f"((hash) => {change})({hash!r})")
    seen: dict[str, Any] = browser.ask(SEEN)
    return seen


def choose(browser: Browser, **values: str) -> dict[str, Any]:
    """What is seen once someone has set the form's controls."""
    for name, value in values.items():
        browser.ask(f"""(() => {{
          const control = document.forms[0].elements[{name!r}];
          control.value = {value!r};
          control.dispatchEvent(new Event("input", {{ bubbles: true }}));
        }})()""")
    seen: dict[str, Any] = browser.ask(SEEN)
    return seen


def judged(verdict: str, name: str) -> set[str]:
    return {one.id for one in read(RESULTS / name)[0].evidence if one.verdict == verdict}


def test_the_page_is_the_one_that_claims_and_bundles_make():
    assert PAGE.read_text(encoding="utf-8") == html_page(), "make claims writes it anew"


def test_every_claim_stands_on_it_with_what_each_bundle_saw():
    text = html_page()
    assert text.startswith("<!doctype html>")
    bundles = {
        path.name: {one.id: one for one in read(path)[0].evidence} for path in RESULTS.glob("claims_*.json")
    }
    parts = {part.partition('"')[0]: unescape(part) for part in text.split('<article id="')[1:]}
    for claim in all_claims():
        part = parts[claim.id]
        assert all(
            said in part for said in (claim.says, claim.fact, claim.instead, claim.source, f" {claim.kind}")
        )
        verdicts = re.findall(r'<li data-verdict="([^"]+)" data-machine="([^"]+)">', part)
        assert sorted(verdicts) == sorted(
            (of[claim.id].verdict, name) for name, of in bundles.items() if claim.id in of
        )
        assert all(of[claim.id].seen in part for of in bundles.values() if claim.id in of)


def test_claims_page_asks_for_nothing_and_only_its_own_script_may_run():
    text = html_page()
    assert re.findall(r"<(?:link|img|script|iframe|object)\b[^>]*>", text) == [
        '<link rel="icon" href="data:,">',
        "<script>",
    ]
    assert "url(" not in text and "@import" not in text
    assert "default-src &#39;none&#39;" in text and "unsafe-inline&#39;; script-src &#39;sha256-" in text


def test_claims_page_links_lead_somewhere_here_and_in_the_site():
    links = re.findall(r'\bhref="(?!\w+:|#)([^"#]+)', html_page())
    assert links and [link for link in links if not (PAGE.parent / unquote(link)).exists()] == []
    in_site = set(re.findall(r'\bhref="(?!\w+:|#)([^"#]+)', docs_site.led(PAGE)))
    copies = {f"../sources/benchmarks/results/{path.name}" for path in RESULTS.glob("claims_*.json")}
    assert in_site == {"claims.html", "findings.html", *copies}


def test_no_page_of_the_documents_is_overwritten_by_one_that_is_html_already():
    assert [page for page in docs_site.DOCS.rglob("*.html") if page.with_suffix(".md").exists()] == []


def test_claims_page_shows_a_bundles_words_as_text(tmp_path):
    text = html_page(hostile(tmp_path))
    assert text.count("<script") == 1 and "<img" not in text and "<b>" not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text) and "{{7*7}}" in text
    assert " onfocus=&#39;" in text and not re.search(r"<[^>]* onfocus=['\"]", text)


def test_a_verdict_of_an_earlier_test_is_told_from_one_of_today(tmp_path):
    kept, _ = read(RESULTS / "claims_gpu.json")
    today = next(one for one in kept.evidence if one.verdict == "refuted")
    for name, one in (("a", today), ("b", msgspec.structs.replace(today, program="another"))):
        write(tmp_path / f"claims_{name}.json", msgspec.structs.replace(kept, evidence=[one]))
    text = html_page(tmp_path)
    assert text.count("(an earlier form of the test)") == 1
    assert "all of its 1 verdicts come from an earlier form" in text
    # Two bundles of one machine stand apart.
    assert "(claims_a.json)" in text and "(claims_b.json)" in text


def test_without_a_bundle_the_claims_stand_there(tmp_path):
    assert html_page(tmp_path).count("No bundle has a verdict yet.") == len(all_claims())


@in_browser
@pytest.mark.parametrize("width", [400, 768, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_all_is_seen_at_any_width_and_nothing_is_asked_for(browser, width, dark):
    seen = see(browser, PAGE, width=width, dark=dark)
    assert len(seen["shown"]) == len(all_claims()) and seen["overflow"] <= 0
    assert (sum(map(int, re.findall(r"\d+", seen["paper"]))) < 200) == dark
    assert browser.said("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    asked_for = [said["request"]["url"] for said in browser.said("Network.requestWillBeSent")]
    assert [url for url in asked_for if not url.startswith("data:")] == [PAGE.as_uri()]


@in_browser
def test_filters_go_together_and_stay_in_the_address(browser):
    see(browser, PAGE)
    refuted = judged("refuted", "claims_gpu.json")
    seen = choose(browser, verdict="refuted", machine="claims_gpu.json")
    assert set(seen["shown"]) == refuted and seen["status"] == f"{len(refuted)} of {len(all_claims())} claims"
    seen = choose(browser, kind="memory", word="CUBLAS  workspace")
    assert (
        seen["shown"]
        and set(seen["shown"]) < {one.id for one in all_claims() if one.kind == "memory"} & refuted
    )
    assert seen["headings"] < 6
    assert see(browser, PAGE, hash=seen["hash"]) == seen
    assert choose(browser, word="no such word")["status"].startswith("No claim")
    browser.ask(
        "new Promise((done) => { document.querySelector('[type=reset]').click(); setTimeout(done, 0); })"
    )
    seen = browser.ask(SEEN)
    assert len(seen["shown"]) == len(all_claims()) and seen["hash"] == ""


@in_browser
def test_an_address_may_hold_anything(browser):
    for hash in (
        "verdict=nonsense&machine=%E0%A4%A",
        "=&=&word=",
        "word=%3Cimg src=x onerror=alerted=1>",
        "no-such-claim",
    ):
        seen = see(browser, PAGE, hash=hash)
        assert not seen["alerted"] and (len(seen["shown"]) == len(all_claims()) or seen["form"]["word"])
    seen = see(browser, PAGE, hash="cublas-workspace")
    assert len(seen["shown"]) == len(all_claims())
    top = browser.ask("document.getElementById('cublas-workspace').getBoundingClientRect().top")
    assert 0 <= top < 400
    assert browser.said("Runtime.exceptionThrown") == []


@in_browser
def test_a_number_in_the_table_leads_to_its_claims(browser):
    see(browser, PAGE)
    browser.ask("""new Promise((done) => {
      addEventListener("hashchange", () => setTimeout(done));
      document.querySelector("td[data-verdict='holds'][data-machine='claims_cpu.json'] a").click();
    })""")
    assert set(browser.ask(SEEN)["shown"]) == judged("holds", "claims_cpu.json")


@in_browser
def test_every_control_has_a_name_and_is_reached_by_key(browser):
    see(browser, PAGE)
    reached = []
    for _ in range(40):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(browser.ask("document.activeElement.name || document.activeElement.type || ''"))
    assert {"word", "verdict", "machine", "kind", "article", "differs", "reset"} <= set(reached)
    assert browser.ask(
        "[...document.querySelectorAll('input, select')].every((one) => one.labels.length === 1)"
    )


@in_browser
def test_a_strange_bundle_runs_nothing(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(html_page(hostile(tmp_path)), encoding="utf-8")
    seen = see(browser, page, width=400)
    assert not seen["alerted"] and len(seen["shown"]) == len(all_claims())
    assert browser.said("Runtime.exceptionThrown", "Log.entryAdded") == []


@in_browser
def test_without_scripts_all_claims_are_read_and_no_dead_control_is_there(browser):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.show(PAGE, width=1600)
        root = browser.call("DOM.getDocument", depth=1)["root"]["nodeId"]
        form = browser.call("DOM.querySelector", nodeId=root, selector="form[hidden]")["nodeId"]
        hidden = browser.call("DOM.querySelectorAll", nodeId=root, selector="main [hidden]")["nodeIds"]
        claims = browser.call("DOM.querySelectorAll", nodeId=root, selector="article")["nodeIds"]
        assert form and not hidden and len(claims) == len(all_claims())
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
