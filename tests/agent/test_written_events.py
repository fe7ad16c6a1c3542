"""The events that the agent writes, held against the structs with which the parent reads them."""

from pathlib import Path

import msgspec
import pytest

import dynotune.agent
from dynotune.agent.core import reasons
from dynotune.schema.events import KINDS
from dynotune.schema.reasons import Reason

from .written_events import Written, written

AGENT = Path(dynotune.agent.__file__).parent
OPEN_KINDS = {"state", "fetching", "trace", "arm_results"}


def faults(event: Written) -> list[str]:
    """List what the parent would not understand of an event."""
    kind = KINDS.get(event.kind)
    if kind is None:
        return [f"{event.place}: no struct reads the event {event.kind}"]
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found = [
        f"{event.place}: {event.kind} has no field {name}"
        for name in event.fields - {"event"} - fields.keys()
    ]
    required = {name for name, field in fields.items() if field.required}
    if not event.is_open:
        found += [f"{event.place}: {event.kind} lacks {name}" for name in required - event.fields]
    return found


@pytest.fixture(scope="module")
def events() -> list[Written]:
    return written({str(path.relative_to(AGENT)): path.read_text() for path in AGENT.rglob("*.py")})


def test_agent_writes_only_events_that_the_parent_reads(events):
    assert [fault for event in events for fault in faults(event)] == []


def test_agent_writes_each_kind_of_event_that_the_parent_reads(events):
    assert {event.kind for event in events} == KINDS.keys()


def test_few_events_have_fields_that_the_source_does_not_name(events):
    """The names of the others are followed through variables and functions, so that a wrong one is seen."""
    assert {event.kind for event in events if event.is_open} == OPEN_KINDS


def test_agent_has_the_codes_of_the_parents_reasons():
    codes = {value for name, value in vars(reasons).items() if name.isupper()}
    assert codes <= {reason.value for reason in Reason}
    assert all(vars(reasons)[Reason(code).name] == code for code in codes)


GOOD = """
class Root:
    def called(self):
        self._event({"event": "root", "at_s": 1.0})
"""


def test_walk_finds_no_fault_when_a_source_is_as_the_structs():
    (event,) = written({"good": GOOD})
    assert (event.kind, event.fields, event.is_open) == ("root", {"event", "at_s"}, False)
    assert faults(event) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (GOOD.replace("at_s", "at_ms"), "root has no field at_ms"),
        (GOOD.replace("at_s", "at_ms"), "root lacks at_s"),
        (GOOD.replace('"root"', '"rot"'), "no struct reads the event rot"),
        ('writer.event(event="process", ppid=1, argc=2)', "process has no field argc"),
        (
            (
                "class Window(Task):\n"
                '    event = "window"\n'
                "    def step_ended(self, n):\n"
                "        self.complete(first_step=1, num_step=n)\n"
            ),
            "window has no field num_step",
        ),
        (
            (
                'class Trace(Task):\n    event = "trace"\n    def f(self):\n        self.give_up("", code=A, '
                "hints=[])\n"
            ),
            "given_up has no field hints",
        ),
        (
            (
                "def say(self):\n"
                '    peaks = {"peak_rss_bytes": 1}\n'
                '    peaks["peak_vram_bytes"] = 2\n'
                '    self._event({"event": "memory", **peaks})\n'
            ),
            "memory has no field peak_vram_bytes",
        ),
        (
            (
                "class Arms:\n"
                "    def block(self):\n"
                "        timed = yield from self.stretches()\n"
                '        self.program.event({"event": "arm_block", "arm": 0, **timed})\n'
                "    def stretches(self):\n"
                '        yield 1\n        return {"baseline": [], "candidates": []}\n'
            ),
            "arm_block has no field candidates",
        ),
    ],
)
def test_walk_finds_a_planted_fault(source, fault):
    found = [each for event in written({"planted": source}) for each in faults(event)]
    assert f"planted:{fault}" in [each.partition(":")[0] + ":" + each.partition(": ")[2] for each in found]
