"""Snapshots that torch itself wrote, against torch's own statistics of the same moment."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from dynotune.schema.facts import Unknown
from dynotune.trace.snapshot import reading

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def dumped(tmp_path):
    """Runs a program that leaves a snapshot; gives what we read of device 0, and torch's statistics."""

    def run(program, *, conf=""):
        script, path, figures = tmp_path / "program.py", tmp_path / "memory.pickle", tmp_path / "stats.json"
        script.write_text(
            textwrap.dedent(f"""
            import json, torch

            MIB = 1 << 20

            def hold(num_mib):
                return torch.empty(num_mib * MIB, dtype=torch.uint8, device="cuda")

            def dump():
                stats = dict(torch.cuda.memory_stats())
                torch.cuda.memory._dump_snapshot({str(path)!r})
                json.dump(stats, open({str(figures)!r}, "w"))
            """)
            + textwrap.dedent(program)
        )
        environment = {name: value for name, value in os.environ.items() if not name.endswith("ALLOC_CONF")}
        if conf:
            # Both names: the newer one is not read by older torch.
            environment |= {"PYTORCH_CUDA_ALLOC_CONF": conf, "PYTORCH_ALLOC_CONF": conf}
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=200, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = reading.load_snapshot(path, limit_bytes=256 * MIB)
        device = next(device for device in found.devices if device.device == 0)
        return found, device, json.loads(figures.read_text())

    return run


# Small, large and odd sizes, a hole in most segments, and a peak that is over.
WORK = """
torch.cuda.memory._record_memory_history(max_entries=100_000, stacks=STACKS)
torch.cuda.reset_peak_memory_stats()

def fill():
    return [hold(3) for _ in range(40)]

def peak():
    return hold(200)

kept = fill()
small = [torch.empty(1000 + number, dtype=torch.uint8, device="cuda") for number in range(50)]
large = peak()
del large
del kept[::2]
del small[::3]
dump()
"""


@pytest.mark.parametrize(("conf", "stacks"), [("", "all"), ("expandable_segments:True", "python")])
def test_a_real_snapshot_says_what_torchs_statistics_say(dumped, conf, stacks):
    found, device, stats = dumped(f"STACKS = {stacks!r}\n{WORK}", conf=conf)
    assert device.reserved_bytes == stats["reserved_bytes.all.current"]
    assert device.allocated_bytes == stats["allocated_bytes.all.current"]
    assert device.active_bytes == stats["active_bytes.all.current"]
    assert device.requested_bytes == stats["requested_bytes.all.current"]
    assert device.inactive_split_bytes == stats["inactive_split_bytes.all.current"]
    assert device.expandable is bool(conf)
    if not conf:
        # A segment is what torch counts as one; of expandable ones it counts address ranges.
        assert device.num_segments == stats["segment.all.current"]
    assert found.settings["expandable_segments"] == str(bool(conf))

    history = device.history
    assert not isinstance(history, Unknown), history
    assert not isinstance(history.peak, Unknown), history.peak
    assert history.peak.start_bytes == 0
    assert history.peak.requested_bytes == stats["requested_bytes.all.peak"]
    assert history.peak_reserved_bytes == stats["reserved_bytes.all.peak"]
    assert history.num_segment_allocs == stats["num_device_alloc"]
    assert history.num_segment_frees == stats["num_device_free"] == 0
    assert (history.num_flushes, history.num_empty_caches, history.num_ooms) == (0, 0, 0)
    assert 0 < history.peak.at_s <= history.duration_s < 200

    # `hold` is the innermost function of the program, in one line of it.
    first = history.peak.holders[0]
    assert first.where.function.endswith("): hold")
    assert "program.py(" in first.where.function
    assert (first.requested_bytes, first.num_blocks) == ((200 + 40 * 3) * MIB, 41)
    assert sum(holder.requested_bytes for holder in history.peak.holders) == history.peak.requested_bytes
    held = {holder.where.function.rpartition("): ")[2]: holder.requested_bytes for holder in device.holders}
    assert held["hold"] == 20 * 3 * MIB


def test_a_history_that_lost_its_beginning_still_finds_the_peak_in_the_rest(dumped):
    _, device, stats = dumped(
        """
        early = [hold(10) for _ in range(8)]
        torch.cuda.memory._record_memory_history(max_entries=40)
        for _ in range(100):
            hold(2)
        torch.cuda.reset_peak_memory_stats()
        late = hold(30)
        del early[0], late
        dump()
        """
    )
    peak = device.history.peak
    assert not isinstance(peak, Unknown), peak
    assert device.history.num_events == 40
    assert peak.start_bytes >= 80 * MIB
    assert peak.requested_bytes == stats["requested_bytes.all.peak"] == 110 * MIB


def test_flushes_and_failures_are_seen_and_emptying_the_cache_is_neither(dumped):
    found, device, stats = dumped(
        """
        torch.cuda.init()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(1024 * MIB / total)
        torch.cuda.memory._record_memory_history(max_entries=100_000)

        def emptied():
            for _ in range(2):
                hold(64)
                torch.cuda.empty_cache()

        def flushed():
            return hold(900)

        emptied()
        a = hold(600)
        del a
        b = flushed()
        try:
            hold(2000)
        except torch.cuda.OutOfMemoryError:
            pass
        dump()
        """
    )
    history = device.history
    assert stats["num_ooms"] == history.num_ooms == 1
    assert stats["num_alloc_retries"] >= 1
    assert history.num_flushes == 1
    assert history.num_empty_caches == 2
    assert history.num_segment_frees == stats["num_device_free"] == 3
    assert {"alloc-retries", "empty-cache-in-loop"} <= {cause.id for cause in found.causes}


def test_a_snapshot_without_a_recorded_history_says_so(dumped):
    _, device, stats = dumped("kept = hold(3)\ndump()")
    assert isinstance(device.history, Unknown)
    assert device.allocated_bytes == stats["allocated_bytes.all.current"]
    assert device.requested_bytes == 3 * MIB
    assert [holder.where.function for holder in device.holders] == [""]
