"""Answers of the server: the page in a real browser, hostile requests, Prometheus."""

from __future__ import annotations

import http.client
import io
import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dynotune.report.documents import layout_of
from dynotune.report.page.html import LiveParts
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import GpuView
from dynotune.watch import RunSource, RunWatcher, Server
from dynotune.watch.follower import Rank
from dynotune.watch.server import MOST_AT_ONCE
from dynotune.watch.terminal import fitted

from ..cli.conftest import until
from ..report.browser import CHROMIUM, Browser

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
BEGUN_S = 1000.0


@pytest.fixture
def watcher(tmp_path: Path) -> RunWatcher:
    """A watcher whose run is fed by hand: a minute of steps of two ranks."""
    folder = tmp_path / "run"
    folder.mkdir()
    made = RunWatcher(folder)
    made.follower.close()  # no sample of this machine comes in between what a test sets and what it reads
    store = made.follower.store
    for rank in ("0", "1"):
        made.follower.ranks[int(rank)] = Rank(rank, 0)
        made.follower.ranks[int(rank)].num_steps = 6000
        for at in range(6000):
            store.add("step", rank, BEGUN_S + at / 100, 0.01, at)
            store.add("wait", rank, BEGUN_S + at / 100, 0.004, at)
            store.add("samples", rank, BEGUN_S + at / 100, 32, at)
    made.look(BEGUN_S + 60)
    return made


@pytest.fixture
def server(watcher: RunWatcher) -> Iterator[Server]:
    made = Server("127.0.0.1:0", RunSource(watcher))
    yield made
    made.close()


def asked(server: Server, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers={"Authorization": f"Bearer {server.token}", **headers})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_server_refuses_every_path_when_the_token_is_missing_or_wrong(server):
    for path in ("/", "/view.json", "/page.json", "/metrics", "/nothing"):
        assert asked(server, path, Authorization="")[0] == 403
        assert asked(server, path, Authorization="Bearer wrong", Host="evil.example")[0] == 403
        assert asked(server, f"{path}?token=wrong", Authorization="")[0] == 403


def test_server_takes_the_token_of_the_address_when_a_proxy_has_a_login(server):
    assert asked(server, f"/view.json?token={server.token}", Authorization="Basic dTpw")[0] == 200


def test_server_makes_a_token_of_its_own_when_it_is_given_none(watcher, server):
    other = Server("127.0.0.1:0", RunSource(watcher))
    other.close()
    assert len(server.token) > 20
    assert server.token != other.token
    assert asked(server, f"/view.json?token={server.token}", Authorization="")[0] == 200


@pytest.mark.parametrize(
    "path", ["/../etc/passwd", "/%2e%2e/etc/passwd", "//evil.example/", "/view.json/..", "/x" * 500]
)
def test_served_page_answers_its_own_paths_alone(server, path):
    code, body = asked(server, path)
    assert code == 404
    assert "root:" not in body


def test_served_page_takes_nothing_but_gets_and_outlives_nonsense(server):
    for sent in (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"\0\xff\r\n\r\n", b"GET\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            raw.sendall(sent)
            assert b" 200 " not in raw.recv(1 << 16)
    assert asked(server, "/view.json")[0] == 200


@pytest.mark.parametrize("address", ["0.0.0.0:0", "127.0.0.1:0"])
def test_an_empty_token_is_none_and_is_refused(watcher, address):
    with pytest.raises(UsageError, match="The token is empty"):
        Server(address, RunSource(watcher), token="")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:²", "127.0.0.1:" + "9" * 5000, "::1:0", "[::1]", "[", ":80", "a b"]
)
def test_an_address_is_refused_when_it_has_no_host_or_no_port(watcher, address):
    with pytest.raises(UsageError, match="is no address"):
        Server(address, RunSource(watcher))


def test_the_loopback_of_ipv6_is_served(watcher):
    try:
        served = Server("[::1]:0", RunSource(watcher))
    except CannotRunHere as error:
        pytest.skip(f"no IPv6 here: {error}")
    try:
        with urllib.request.urlopen(served.url.replace("/?", "/view.json?"), timeout=30) as answer:
            assert answer.status == 200
    finally:
        served.close()
    with pytest.raises(UsageError, match="other machines"):
        Server("[::]:0", RunSource(watcher))


def test_a_time_that_is_no_number_is_answered_with_a_refusal(server):
    assert asked(server, "/page.json?since=abc")[0] == 400


def test_a_token_is_asked_for_where_one_was_given(watcher):
    served = Server("0.0.0.0:0", RunSource(watcher), token="word")
    try:
        assert asked(served, "/view.json", Authorization="")[0] == 403
        assert asked(served, "/view.json?token=other", Authorization="")[0] == 403
        assert asked(served, "/view.json?token=word", Authorization="")[0] == 200
        assert asked(served, "/metrics", Authorization="Bearer word", Host="any.example")[0] == 200
    finally:
        served.close()


@pytest.mark.parametrize("path", ["/view.json", "/page.json"])
def test_secrets_of_the_command_are_not_told(server, watcher, path):
    watcher.follower.command = ["python", "train.py", "--password=hunter2", "--lr=1"]
    watcher.look(BEGUN_S + 61)
    code, body = asked(server, path)
    assert code == 200
    assert "--lr=1" in body
    assert "hunter2" not in body


def test_a_taken_port_is_said_with_what_to_do(server, watcher):
    with pytest.raises(CannotRunHere, match="Cannot serve") as refused:
        Server(f"127.0.0.1:{server.port}", RunSource(watcher))
    assert "Give another port" in refused.value.hint


# The terminal, and what it shares with the page


def full_gpu(**more: Any) -> GpuView:
    fields = dict.fromkeys(
        (name for name in GpuView.__struct_fields__ if name not in ("clock_limits", "others")), 1
    )
    return GpuView(**{**fields, **more})


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (200, 60)])
def test_the_screen_fits_any_terminal_and_ends_with_the_verdict(watcher, width, height):
    watcher.follower.gpus = [
        full_gpu(sm_active_percent=Unknown("no GPM counters"), memory_used_bytes=3 << 30)
    ]
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    console.print(fitted(layout_of(watcher.look(BEGUN_S + 60)), height))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "verdict Input-bound: the loader lets each step wait 40% of its time" in text
    assert any(line.startswith("GPU busy") for line in lines)
    assert ("no GPM counters" in text) == (height == 60)


def test_a_screen_without_room_for_all_keeps_the_verdict(watcher):
    console = Console(width=80, height=8, file=io.StringIO(), force_terminal=False)
    console.print(fitted(layout_of(watcher.look(BEGUN_S + 60)), 8))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 8
    assert any(line.startswith("verdict  Input-bound") for line in lines[-3:])


# Clients that do not behave


def test_server_closes_further_connections_when_clients_never_read(server):
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(MOST_AT_ONCE)]
    try:
        refused = until(lambda: answer_of(server) == b"" or None, "a closed connection")
        assert refused
    finally:
        for one in silent:
            one.close()
    assert until(lambda: answer_of(server).startswith(b"HTTP/1.0 200"), "an answer again")


def test_server_closes_a_connection_when_its_head_drips(server, monkeypatch):
    monkeypatch.setattr("dynotune.watch.server.HEAD_S", 0.1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=0.02) as raw:
        raw.sendall(b"GET / HTTP/1.0\r\nX-Long: ")
        assert is_closed_within(100, raw)
    assert asked(server, "/view.json")[0] == 200


def is_closed_within(num_signs: int, raw: socket.socket) -> bool:
    """Return whether the server closes the connection while it gets these signs, one by one."""
    for _ in range(num_signs):
        try:
            return raw.recv(1) == b""
        except TimeoutError:
            raw.sendall(b"x")
        except ConnectionError:
            return True
    return False


def answer_of(server: Server) -> bytes:
    """Ask for the state; nothing if the server closes the connection."""
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            asked = f"GET /view.json?token={server.token} HTTP/1.0\r\n\r\n"
            raw.sendall(asked.encode())
            return raw.recv(1 << 12)
    except ConnectionError:
        return b""


def test_pages_are_written_once_for_a_state_when_many_ask(watcher, server, monkeypatch):
    written = []
    monkeypatch.setattr(
        "dynotune.watch.server.html.live_parts", lambda report: written.append(1) or LiveParts("", "", "")
    )
    watcher.look(BEGUN_S + 62)
    for _ in range(5):
        assert asked(server, "/page.json")[0] == 200
    assert written == [1]


# Prometheus


def metrics(server: Server) -> str:
    pytest.importorskip("prometheus_client")
    code, text = asked(server, "/metrics")
    assert code == 200
    return text


def test_steps_are_a_histogram_of_each_rank_with_its_sum(server):
    lines = metrics(server).splitlines()
    assert 'dynotune_step_seconds_count{rank="1"} 6000.0' in lines
    (total,) = [line for line in lines if line.startswith('dynotune_step_seconds_sum{rank="0"}')]
    assert float(total.split()[1]) == pytest.approx(60.0)
    counts = [
        float(line.split()[1])
        for line in lines
        if line.startswith("dynotune_step_seconds_bucket") and '"0"' in line
    ]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 6000
    assert 'dynotune_bottleneck{cause="input"} 1.0' in lines


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: apt-get install prometheus")
def test_promtool_has_nothing_to_say_of_the_metrics(server):
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=metrics(server), text=True, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here: apt-get install prometheus")
def test_a_real_prometheus_scrapes_it_with_the_token(watcher, tmp_path):
    pytest.importorskip("prometheus_client")
    served = Server("127.0.0.1:0", RunSource(watcher), token="word")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {
        "job_name": "dynotune",
        "authorization": {"credentials": "word"},
        "scrape_interval": "1s",
        "static_configs": [{"targets": [f"127.0.0.1:{served.port}"]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
    command = [PROMETHEUS, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("w") as log:
        scraper = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        found = until(lambda: query(port, 'dynotune_step_seconds_count{rank="1"}'), "a scraped value")
        assert found[0]["value"][1] == "6000"
        assert query(port, "up")[0]["value"][1] == "1"
        quantile = query(port, "histogram_quantile(0.5, dynotune_step_seconds_bucket)")
        assert 0.002 <= float(quantile[0]["value"][1]) <= 0.02
    finally:
        scraper.terminate()
        scraper.wait(timeout=60)
        served.close()


def query(port: int, what: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/api/v1/query?query=" + what.replace(" ", "%20").replace('"', "%22"))
        return json.loads(connection.getresponse().read())["data"]["result"]
    except (OSError, ValueError, KeyError):
        return None
    finally:
        connection.close()


# The page

VIEWS = "Number(document.documentElement.dataset.views || 0)"
WAIT = "new Promise((done) => {{ const look = () => ({}) ? done(true) : setTimeout(look, 50); look(); }})"
SEEN = """(() => ({
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  verdict: document.querySelector("#answer h1").textContent,
  large: document.querySelector("#answer .large").textContent,
  rest: document.querySelector("#answer .rest").textContent,
  tiles: [...document.querySelectorAll(".tile dt")].map((name) => name.textContent),
  plots: [...document.querySelectorAll(".plot")].map((plot) => (
    plot.querySelector("canvas") ? Number(plot.dataset.lines) : 0)),
  points: Object.values(series.step || {}).map((rows) => rows.length),
  ranks: document.querySelector("#ranks table")?.querySelectorAll("tbody tr").length,
  paper: getComputedStyle(document.body).backgroundColor,
  labels: [...document.querySelectorAll(".plot figcaption")].map((caption) => caption.textContent),
}))()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def opened(browser: Browser, url: str, width: int, *, dark: bool = False) -> dict[str, Any]:
    browser.events.clear()
    browser.resize(width)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.call("Emulation.setEmulatedMedia", features=[scheme])
    browser.call("Page.navigate", url=url)
    browser.wait_for("Page.loadEventFired")
    browser.ask(WAIT.format(f"{VIEWS} >= 1"))
    return browser.ask(SEEN)


@pytest.mark.parametrize("width", [400, pytest.param(1600, marks=pytest.mark.long)])
def test_the_page_shows_the_run_at_any_width_and_asks_nobody_else(browser, server, width):
    light, dark = (opened(browser, server.url, width, dark=dark) for dark in (False, True))
    for seen in (light, dark):
        assert seen["overflow"] <= 0
        assert seen["verdict"].startswith("Input-bound: the loader lets each step wait 40%")
        assert seen["ranks"] == 2
        assert len(seen["plots"]) >= 2
        assert min(seen["plots"]) >= 1
        assert all(label for label in seen["labels"])
        assert seen["tiles"][:3] == ["steps", "samples", "wait for input"]
    assert light["paper"] != dark["paper"]
    assert browser.said("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    asked_for = {said["request"]["url"] for said in browser.said("Network.requestWillBeSent")}
    assert {url for url in asked_for if not url.startswith(("data:", server.place))} == set()


@pytest.mark.long
def test_a_reload_loses_nothing(browser, server):
    before = opened(browser, server.url, 900)["points"]
    assert opened(browser, server.url, 900)["points"] == before == [60, 60]


def test_names_from_the_program_run_nothing(browser, server, watcher):
    watcher.follower.command = ["<img src=x onerror=window.ran=1>", "</script><script>window.ran=1</script>"]
    watcher.look(BEGUN_S + 60)
    opened(browser, server.url, 900)
    assert browser.ask("'ran' in window") is False
    assert "onerror" in browser.ask("document.getElementById('answer').textContent")
    assert browser.ask("document.querySelector('img')") is None


@pytest.mark.long
def test_the_page_outlives_the_program_and_says_so(browser, user_watch):
    watched = user_watch
    opened(browser, watched.url, 900)
    watched.until(lambda view: view["num_steps"] > 10, "steps")
    browser.ask(WAIT.format("document.querySelector('.rest').textContent.includes('step')"))
    assert browser.ask(SEEN)["rest"].startswith("running")
    code, _ = watched.ends()
    assert code == 0
    browser.ask(WAIT.format("document.documentElement.dataset.over === 'true'"))
    seen = browser.ask(SEEN)
    assert seen["large"] == "Ended"
    assert "The program has ended with exit code 0" in seen["verdict"]
    assert seen["ranks"] == 1


def test_the_page_shows_a_refusal_when_the_server_answers_with_one(browser, server):
    opened(browser, server.url, 900)
    assert browser.ask("document.getElementById('lost').hidden") is True
    server.token = "another"
    browser.ask(WAIT.format("!document.getElementById('lost').hidden"))
    text = browser.ask("document.getElementById('lost').textContent")
    assert text.startswith("dynotune answered with 403: The token is missing or wrong")


@pytest.mark.long
def test_a_page_whose_server_was_killed_says_that_too(browser, user_watch):
    opened(browser, user_watch.url, 900)
    user_watch.process.kill()
    browser.ask(WAIT.format("!document.getElementById('lost').hidden"))
    assert "No answer any more" in browser.ask("document.getElementById('lost').textContent")


@pytest.fixture
def user_watch(watch):
    return watch(first="compute=0.02")
