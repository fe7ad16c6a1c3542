"""Commands that alerts start, and viewers that fail, in this process."""

from __future__ import annotations

import msgspec
import pytest

from dynotune.schema.watch import Alert, View
from dynotune.watch.watcher import MOST_DETAILS, Commands, RunWatcher

SECRET = "hf_" + "abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture
def view(tmp_path):
    """A view of a run that has not begun, to be given alerts."""
    watcher = RunWatcher(tmp_path)
    yield watcher.look(0.0)
    watcher.follower.close()


def alerted(view: View, *ids: str, **fields) -> View:
    return msgspec.structs.replace(
        view, alerts=[Alert(id=id, text="No step for 10 s.", **fields) for id in ids]
    )


def test_a_command_is_started_once_for_each_alert_that_begins_and_again_when_it_comes_back(tmp_path, view):
    told = tmp_path / "told"
    commands = Commands(f"echo $DYNOTUNE_ALERT >> {told}", (tmp_path / "out").open("w"))

    def shows(*ids):
        commands(alerted(view, *ids))
        for one in commands._running:
            one.wait()

    for ids in (["stalled"], ["stalled"], ["stalled", "rank-lag"], [], ["stalled"]):
        shows(*ids)
    assert told.read_text().split() == ["stalled", "rank-lag", "stalled"]


def test_an_alert_is_whole_json_without_secrets_however_much_it_has_to_say(tmp_path, view):
    told = tmp_path / "told"
    commands = Commands(f"cat > {told}", (tmp_path / "out").open("w"))
    commands(alerted(view, "stalled", details=[f"thread {number}: {SECRET}" for number in range(10_000)]))
    commands._running[0].wait()
    alert = msgspec.json.decode(told.read_bytes(), type=Alert)
    assert (alert.id, len(alert.details)) == ("stalled", MOST_DETAILS)
    assert SECRET not in told.read_text()


def test_a_command_that_reads_nothing_holds_nobody_up(tmp_path, view):
    commands = Commands("exit 3", (tmp_path / "out").open("w"))
    commands(alerted(view, "stalled", details=["x" * 100] * MOST_DETAILS))
    assert commands._running[0].wait() == 3


def test_a_viewer_that_fails_is_named_and_the_others_go_on(tmp_path):
    def full(view: View) -> None:
        raise OSError("no space left on device")

    watcher, seen = RunWatcher(tmp_path), []
    watcher.show += [full, seen.append]
    watcher.look(0.0)
    watcher.look(1.0)
    watcher.follower.close()
    assert len(seen) == 2
    assert any("no space left on device" in note for note in seen[1].notes)
