"""Waits of threads for a free core."""

from __future__ import annotations

from dynotune.agent.facts.threads import Threads


def test_waits_of_threads_are_those_between_the_windows_ends(tmp_path):
    def waited(**threads):
        for thread, (waited_s, num_turns) in threads.items():
            folder = tmp_path / "task" / thread.removeprefix("t")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "schedstat").write_text(f"5000 {round(waited_s * 1e9)} {num_turns}\n")

    threads = Threads(str(tmp_path))
    assert threads.facts()["core_wait_s_per_s"]["type"] == "unknown"
    waited(t1=(1.0, 3), t2=(100.0, 3))
    threads.begin()
    # One more began meanwhile, another waited no longer.
    waited(t1=(3000.0, 9), t3=(2000.0, 3))
    first = threads.facts()["core_wait_s_per_s"]
    waited(t1=(1.0, 9))
    assert 0 < threads.facts()["core_wait_s_per_s"] < first
    for thread in ("t1", "t2", "t3"):
        waited(**{thread: (0.0, 0)})
    assert threads.facts()["core_wait_s_per_s"]["type"] == "unknown"
