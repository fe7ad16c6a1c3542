"""Snapshots that torch itself wrote, against torch's own statistics of the same moment."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from dynotune import memory
from dynotune.trace.snapshot import reading

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def dumped(tmp_path):
    """Runs a program that leaves a snapshot; gives device 0's blocks, what is told of them, and torch's
    statistics."""

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
            [sys.executable, script],
            capture_output=True,
            text=True,
            timeout=200,
            env=environment,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        lives = reading.load_snapshot(path, limit_bytes=256 * MIB)[0]
        return lives, memory.of_snapshot(lives), json.loads(figures.read_text())

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
    lives, device, stats = dumped(f"STACKS = {stacks!r}\n{WORK}", conf=conf)
    assert lives.unknown == ""
    assert device.notes == []
    for moment, level in ((device.steady, "current"), (device.peak, "peak")):
        assert moment.total_bytes == moment.reserved_bytes == stats[f"reserved_bytes.all.{level}"]
        assert moment.requested_bytes == moment.of("blocks") == stats[f"requested_bytes.all.{level}"]
        assert moment.of("unknown") == 0
    assert lives.alive(0) == []
    # The reserved memory that is not active, by torch's count, is cache or lies between blocks.
    free = stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"]
    assert device.steady.of("cache") + device.steady.of("fragmentation") == free

    # `hold` is the innermost function of the program, in one line of it.
    (first, size), *_ = next(term for term in device.peak.terms if term.name == "blocks").lines.items()
    assert "program.py(" in first
    assert first.endswith("): hold")
    assert size == (200 + 40 * 3) * MIB
    assert next(term for term in device.steady.terms if term.name == "blocks").lines[first] == 20 * 3 * MIB


def test_a_history_that_lost_its_beginning_still_finds_the_peak_in_the_rest(dumped):
    lives, device, stats = dumped(
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
    assert lives.unknown == ""
    assert 0 < lives.num_events <= 40
    assert sum(life.size for life in lives.alive(0)) >= 80 * MIB
    assert device.peak.requested_bytes == stats["requested_bytes.all.peak"] == 110 * MIB


def test_failures_and_memory_that_is_given_back_are_told(dumped):
    lives, device, stats = dumped(
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
    assert stats["num_ooms"] == len(lives.failures) == 1
    assert device.notes[0].startswith("1.95 GiB was asked for by")
    assert "900 MiB was in live tensors" in device.notes[0]
    assert f"given back to the driver {stats['num_device_free']} times" in device.notes[1]


def test_a_snapshot_without_a_recorded_history_says_so(dumped):
    lives, device, stats = dumped("kept = hold(3)\ndump()")
    assert "has no history" in lives.unknown
    assert device.steady.requested_bytes == 3 * MIB
    assert device.steady.reserved_bytes == stats["reserved_bytes.all.current"]
    assert next(term for term in device.steady.terms if term.name == "blocks").lines == {}
