"""Choose which parts of a step to delay, and draw conclusions from the step's answers.

A recorded window is slower than the program, so its shares are inferred. An answer to a delay is measured
without a profiler: where both decide and disagree, the answer counts. A part is delayed only where its answer
may tell something: without a device, and without waits for a loader, a step is one thread's work, and each
delay of that thread lengthens it.
"""

from collections.abc import Mapping, Sequence

from dynotune.diagnose.places import function_at, functions_to_delay
from dynotune.diagnose.tested import claimed_parts
from dynotune.doctor import ObservationView, all_rules, examine
from dynotune.measure.live import Delay, TaskRunner, delay_tests
from dynotune.schema.attribution import Attribution
from dynotune.schema.delays import DelayedPart, DelayTests
from dynotune.schema.diagnosis import Bottleneck
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Observation, ProcessState
from dynotune.text import words

LEAST_WAIT = 0.02
"""Share of a step: a program that waits for its loader for less has batches ready, so a small delay cannot
show."""
LEAST_COPIED = 0.05
"""Share of a step that copies to the device take: the answer to a delay of less would be the device's."""
WORKS_MOSTLY = 0.5
"""Share of a step from which on the device is delayed before the host."""
LONGEST_STEP_S = 2.0
"""Blocks of longer steps take minutes."""
PART_OF: Mapping[Bottleneck, DelayedPart] = {
    "input": "loader",
    "transfer": "transfer",
    "host": "host",
    "memory": "host",
    "device": "device",
}
"""The part whose delay shows whether a bottleneck is one; communication and "none" have none."""
NAMED: Mapping[DelayedPart, str] = {
    "host": "the host",
    "device": "the device",
    "loader": "the loader",
    "transfer": "copies to the device",
    "rank": "this rank",
    "function": "the function",
}


def delays_of(observation: Observation) -> list[Delay] | Unknown:
    """Return the parts of the program that are worth a delay; Unknown, with the reason, if none can be
    tested."""
    processes = observation.processes
    if isinstance(processes, Unknown) or not processes:
        return Unknown("no process of the command made steps")
    timing = processes[0].timing
    if isinstance(timing, Unknown):
        return timing
    if timing.step_s > LONGEST_STEP_S:
        return Unknown(f"a step takes {words.duration(timing.step_s)}, so delays would take minutes")
    attribution, others, host_first = observation.attribution, list[Delay](), True
    if isinstance(attribution, Attribution) and attribution.busy_share is not None:
        others.append(Delay(part="device"))
        # Slow steps leave time for the first delay only.
        host_first = attribution.shares.device < WORKS_MOSTLY
        if attribution.shares.transfer >= LEAST_COPIED:
            others.append(Delay(part="transfer"))
        others += _functions(observation, processes[0])
    if timing.wait_s is not None and timing.wait_s >= LEAST_WAIT * timing.step_s:
        others.insert(1, Delay(part="loader"))
    others += _ranks(observation, processes)
    if not others:
        return Unknown("a step is the work of one thread, and any delay of it lengthens the step")
    others.insert(0 if host_first else 1, Delay(part="host"))
    return others


def _ranks(observation: Observation, processes: Sequence[ProcessState]) -> list[Delay]:
    """Return delays of the rank that the others wait for most, else of the first, and of one more."""
    ranks = sorted(process.rank for process in processes if process.rank is not None)
    if len(ranks) < 2:
        return []
    trace = observation.trace
    late = None if isinstance(trace, Unknown) or trace.ranks is None else trace.ranks.stragglers
    first = late[0].rank if late and late[0].rank in ranks else ranks[0]
    other = next(rank for rank in reversed(ranks) if rank != first)
    return [Delay(part="rank", place=str(rank), site={"rank": str(rank)}) for rank in (first, other)]


def _functions(observation: Observation, process: ProcessState) -> list[Delay]:
    """Return delays of the functions of the program that claim most of a step."""
    findings, _ = examine(ObservationView(observation))
    rules = all_rules()
    # A loader's functions run in its workers, which have a delay of their own.
    others = [each for each in findings if claimed_parts(each.id, rules[each.id].family) != {"loader"}]
    found = []
    for place in functions_to_delay(others, process):
        function = function_at(place)
        assert function is not None
        site = {"file": function.file, "line": str(function.line), "name": function.name}
        found.append(Delay(part="function", place=place, site=site))
    return found


def tested(runner: TaskRunner, observation: Observation) -> DelayTests | Unknown:
    """Delay the parts of the observed program, whose live run goes on afterwards."""
    delays = delays_of(observation)
    if isinstance(delays, Unknown):
        return delays
    if not runner.goes_on:
        return Unknown("the program had ended")
    loaders = [] if isinstance(observation.processes, Unknown) else observation.processes[0].loaders
    return delay_tests(runner, delays, num_workers=max([1, *(loader.num_workers for loader in loaders)]))


def corrected(
    found: Bottleneck,
    avoidable: Mapping[Bottleneck, float],
    delays: DelayTests | Unknown,
    *,
    has_device: bool,
) -> tuple[Bottleneck, str]:
    """Return the bottleneck that the delays bear out, and a sentence if it is not the recorded one.

    A recorded bottleneck stays unless a delay of its part clearly does not lengthen a step, and a delay of
    another part clearly does. Without a device, operators run in the thread that the host's delay stops, so
    that delay cannot tell operators from Python.
    """
    if isinstance(delays, Unknown):
        return found, ""
    is_critical = {test.part: test.is_critical for test in delays.tests}
    part = PART_OF.get(found)
    if part is None or is_critical.get(part) is not False:
        return found, ""
    critical = [
        name for name, other in PART_OF.items() if name not in ("memory", found) and is_critical.get(other)
    ]
    if not has_device and "host" in critical and avoidable.get("host", 0.0) < 0.1:
        critical = ["device" if name == "host" else name for name in critical]
    if not critical:
        return found, ""
    other = max(critical, key=lambda name: avoidable.get(name, 0.0))
    told = (
        "the thread that makes the steps"
        if not has_device and other in ("host", "device")
        else NAMED[PART_OF[other]]
    )
    slope = next(test.slope for test in delays.tests if test.part == part)
    return other, (
        f"The recorded steps name {NAMED[part]} as the bottleneck. A delay of {NAMED[part]} lengthened a "
        "step by "
        f"{words.share(max(0.0, slope))} of the delay only, and a delay of {told} did lengthen it, so the "
        "verdict "
        "follows the delays."
    )


def most_saved(found: Bottleneck, delays: DelayTests | Unknown) -> tuple[float, str] | None:
    """Return the share of a step that a cure of the bottleneck saves at most, and the part that binds then.

    A part that hides a delay of up to its slack becomes critical itself once the bottleneck is shorter by as
    much. The upper end of the slack's interval counts. None if the bottleneck was not tested, or if no other
    part's slack is known.
    """
    if isinstance(delays, Unknown):
        return None
    part = PART_OF.get(found)
    if not any(test.part == part and test.is_critical for test in delays.tests):
        return None
    slacks = []
    for test in delays.tests:
        last = test.answers[-1]
        if test.part != part and test.is_critical is False and last.ci[0] > 0:
            slacks.append((last.delay_s - last.ci[0], test.part))
    if not slacks:
        return None
    slack_s, other = min(slacks)
    return min(1.0, slack_s / delays.step_s), NAMED[other]
