"""Pages of studies as a real browser shows them: one start of Chromium for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dynotune.report.page.html import page, write

from .. import answers, studies
from ..accounts import ACCOUNT
from ..browser import CHROMIUM, Browser
from ..summaries import difference, summary
from ..timed_starts import FOUND
from .test_html import hostile

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")

SEEN = """(() => {
  const charts = [...document.querySelectorAll(".chart")];
  const root = document.documentElement;
  const colour = (element, property) => element && getComputedStyle(element)[property];
  const room = root.clientWidth;
  return {
    charts: charts.length,
    marks: charts.map((chart) => chart.querySelectorAll(".mark, .part, rect[fill]").length),
    widths: charts.map((chart) => chart.getBoundingClientRect().right),
    labels: [...document.querySelectorAll(".chart .name, .chart .figure")]
      .filter((label) => label.offsetWidth).map((label) => {
        const box = label.getBoundingClientRect();
        return [label.textContent, box.left, box.right];
      }),
    overflow: root.scrollWidth - room,
    room: room,
    paper: colour(document.body, "backgroundColor"),
    ink: colour(document.querySelector(".chart .name"), "color"),
    links: [...document.querySelectorAll(".chart a, .chart image, .chart foreignObject")].length,
    alerted: "alerted" in window,
    headings: document.querySelectorAll("h1, h2").length,
    folded: [...document.querySelectorAll("details")].filter((part) => !part.open).length,
  };
})()"""


@dataclass(frozen=True, slots=True)
class Shown:
    """What was seen of a page at a width, and what the browser said meanwhile."""

    seen: dict[str, Any]
    complaints: list[dict[str, Any]]
    requests: list[str]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def rich(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "report.html"
    write(path, studies.rich(), recipe="[settings]\n")
    return path


def show(browser: Browser, path: Path, width: int, *, dark: bool = False) -> Shown:
    browser.show(path, width=width, dark=dark)
    seen = browser.ask(SEEN)
    complaints = browser.said("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    requests = [said["request"]["url"] for said in browser.said("Network.requestWillBeSent")]
    return Shown(seen, complaints, requests)


@pytest.fixture(scope="module")
def looks(browser, rich) -> dict[tuple[int, bool], Shown]:
    """The rich page at each width, light and dark."""
    return {
        (width, dark): show(browser, rich, width, dark=dark)
        for width in (1600, 400)
        for dark in (False, True)
    }


@pytest.fixture(params=[(1600, False), (1600, True), (400, False), (400, True)], ids=str)
def shown(request, looks) -> Shown:
    return looks[request.param]


def test_every_picture_is_drawn_with_its_marks(shown):
    assert shown.seen["charts"] == 4
    assert min(shown.seen["marks"]) >= 4


def test_the_console_is_silent_and_nothing_is_asked_of_the_network(shown, rich):
    assert shown.complaints == []
    assert shown.requests == [rich.as_uri()]


def test_nothing_is_wider_than_the_window(shown):
    assert shown.seen["overflow"] <= 0
    assert max(shown.seen["widths"]) <= shown.seen["room"]
    assert [
        text for text, left, right in shown.seen["labels"] if left < 0 or right > shown.seen["room"]
    ] == []


@pytest.mark.parametrize("width", [1600, 400])
def test_pictures_take_the_colours_of_the_page(looks, width):
    light, dark = (looks[width, dark].seen for dark in (False, True))
    assert brightness(light["paper"]) > 240 > 100 > brightness(light["ink"])
    assert brightness(dark["paper"]) < 40 < 150 < brightness(dark["ink"])


@pytest.mark.long
def test_pictures_follow_when_the_scheme_or_the_width_changes(browser, rich):
    light = show(browser, rich, 1600).seen
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.resize(400)
    dark = browser.ask(SEEN)
    assert brightness(dark["ink"]) > 150 > brightness(light["ink"])
    assert dark["overflow"] <= 0 and max(dark["widths"]) <= 400


def test_button_copies_the_lines_beside_it(browser, rich):
    show(browser, rich, 1600)
    copied = browser.ask("""(() => {
      const button = document.querySelector(".copy");
      button.click();
      return [getSelection().toString(), button.parentElement.querySelector("pre").textContent];
    })()""")
    assert copied[0] == copied[1] and copied[0].startswith("dynotune run --recipe recipe.toml")


def test_numbers_beside_pictures_are_folded_at_any_width(looks):
    assert looks[1600, False].seen["folded"] == looks[400, False].seen["folded"] > 3


def test_strange_names_are_shown_as_they_are_and_run_nothing(browser, tmp_path):
    path = tmp_path / "report.html"
    study = hostile(studies.rich())
    path.write_text(page(study).replace("alert(1)", "window.alerted=1"), encoding="utf-8")
    browser.show(path, width=400)
    seen = browser.ask(SEEN)
    assert not seen["alerted"]
    assert seen["links"] == 0
    assert seen["overflow"] <= 0
    assert any("</script>" in text for text, _, _ in seen["labels"])
    assert browser.said("Runtime.exceptionThrown", "Log.entryAdded") == []
    assert len(browser.said("Network.requestWillBeSent")) == 1


@pytest.mark.parametrize(
    "made",
    [
        studies.empty,
        *(pytest.param(made, marks=pytest.mark.long) for made in (studies.unfinished, studies.large)),
    ],
)
def test_pages_that_lack_parts_are_as_sound(made, browser, tmp_path):
    path = tmp_path / "report.html"
    write(path, made())
    if made is studies.empty:
        browser.show(path, width=400)
    else:
        shown = show(browser, path, 400)
        assert shown.complaints == []
    assert browser.ask("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize(
    "made", [answers.comparison, answers.diagnosis, summary, difference, lambda: ACCOUNT, lambda: FOUND]
)
@pytest.mark.parametrize("width", [400, 1600])
def test_an_answers_page_is_drawn_asks_nothing_and_fits(made, width, browser, tmp_path):
    path = tmp_path / "answer.html"
    write(path, made())
    shown = show(browser, path, width, dark=width == 400)
    assert shown.seen["charts"] >= 1 and min(shown.seen["marks"]) >= 1
    assert shown.complaints == [] and shown.requests == [path.as_uri()]
    assert shown.seen["overflow"] <= 0 and max(shown.seen["widths"]) <= shown.seen["room"]


@pytest.mark.parametrize("made", [answers.comparison, answers.diagnosis])
def test_by_the_keyboard_all_of_an_answers_page_is_reached(made, browser, tmp_path):
    path = tmp_path / "answer.html"
    write(path, made())
    show(browser, path, 400)
    reached: list[str] = []
    for _ in range(browser.ask("document.querySelectorAll('a, summary, button, [tabindex=\"0\"]').length")):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(browser.ask("document.activeElement.className + document.activeElement.tagName"))
    assert reached[0] == "skipA"
    assert {"linePRE", "SUMMARY"} <= set(reached)


@pytest.mark.parametrize("made", [answers.comparison, answers.diagnosis])
def test_strange_names_run_nothing_in_an_answers_page(made, browser, tmp_path):
    path = tmp_path / "answer.html"
    path.write_text(page(hostile(made())).replace("alert(1)", "window.alerted=1"), encoding="utf-8")
    shown = show(browser, path, 400)
    assert not shown.seen["alerted"] and shown.seen["links"] == 0 and shown.seen["overflow"] <= 0
    assert shown.complaints == [] and len(shown.requests) == 1


def test_the_browser_of_these_tests_does_complain(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'"><img '
        'src="http://127.0.0.1:9/x.png">'
        "<script>window.ran = 1</script><table width=3000><td>wide</table>"
    )
    browser.show(path, width=400)
    assert browser.ask("'ran' in window") is False
    assert browser.ask("document.documentElement.scrollWidth") > 400
    assert len(browser.said("Log.entryAdded")) >= 2


def brightness(colour: str) -> float:
    """Mean of the channels of `rgb(…)`."""
    channels = [float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    return sum(channels) / len(channels)
