"""Turn an observation into a diagnosis: bottleneck, verdict, findings. Defined in
docs/reference/diagnosis.md."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dynotune.diagnose.attribute import IMBALANCE
from dynotune.diagnose.bottlenecks import BOTTLENECKS, bottleneck_of
from dynotune.diagnose.delayed import corrected, most_saved
from dynotune.diagnose.places import FUNCTION
from dynotune.diagnose.tested import sort_by_tests
from dynotune.doctor import FAMILIES, Family, ObservationView, all_rules, examine
from dynotune.schema.attribution import Attribution, Predicted
from dynotune.schema.causes import CAUSES
from dynotune.schema.delays import DelayTests
from dynotune.schema.diagnosis import Bottleneck, Diagnosis, Finding, Forecast, UpperBound
from dynotune.schema.facts import NOT_ASKED, Unknown
from dynotune.schema.observation import Observation
from dynotune.schema.setting import Setting
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import Place
from dynotune.text import words

DISTURBED = 0.25
"""Share of the cores: if other programs use as much, steps take longer and spend their time differently."""
LEAST_AVOIDABLE = 0.10
"""Share of a step: a smaller part is no bottleneck. `compare` proves a gain of this size in four to six
pairs."""
DEVICE_BUSY = 0.70
"""Busy share of a step: below this, a device waits for longer than a faster device could make up for."""
OPERATORS_DOMINATE = 0.50
"""Share of a step without a device: above this, operators take most of the step."""

OF_START = "start-dominates"
"""Finding of a command whose steps are the smaller part of its time, which the verdict has to say."""
OF_IDLE = "service-idle"
"""Finding of a server that mostly waits for requests, of which no other part of its steps tells."""
OF_SOME_STEPS: Family = "phases"
"""Family of findings about work that only some steps do, such as validation."""

NOWHERE = Place()


def conclude(
    observation: Observation,
    *,
    upper_bounds: Sequence[UpperBound] | Unknown = NOT_ASKED,
    forecasts: list[Forecast] | Unknown = NOT_ASKED,
) -> Diagnosis:
    """Ask all rules, and name the bottleneck of the command."""
    findings, unknown = examine(ObservationView(observation))
    attribution, processes = observation.attribution, observation.processes
    known = [] if isinstance(processes, Unknown) else processes
    none = processes if isinstance(processes, Unknown) else Unknown("no process of the command made steps")
    timing = known[0].timing if known else none
    loaders = [loader for process in known for loader in process.loaders]
    found: Bottleneck = "none"
    notes = _notes(observation)
    families = {id_: rule.family for id_, rule in all_rules().items()}
    has_device = not isinstance(attribution, Unknown) and attribution.busy_share is not None
    delays = attribution if isinstance(attribution, Unknown) else observation.delays
    if not isinstance(attribution, Unknown):
        found, told = corrected(
            bottleneck(attribution), avoidable(attribution), delays, has_device=has_device
        )
        notes = [told, *notes] if told else notes
        findings = _bounded(findings, found, delays)
        workers = max((loader.num_workers for loader in loaders), default=0)
        findings = [_with_predictions(finding, attribution.predicted, workers) for finding in findings]
    findings, refuted = sort_by_tests(findings, families, delays, has_device=has_device)
    disturbance = _disturbance(observation)
    return Diagnosis(
        command=observation.command,
        verdict=(f"Disturbed, as {disturbance}. " if disturbance else "")
        + verdict(timing, attribution, found, findings, of_loader=loaders[0].place if loaders else NOWHERE)
        + "".join(f" {finding.claim}" for finding in findings if finding.id == OF_START),
        bottleneck=found,
        shares=attribution if isinstance(attribution, Unknown) else attribution.shares,
        findings=findings,
        refuted=refuted,
        unknown=unknown,
        steps=timing,
        busy_share=None if isinstance(attribution, Unknown) else attribution.busy_share,
        upper_bounds=upper_bounds if isinstance(upper_bounds, Unknown) else list(upper_bounds),
        forecasts=forecasts,
        account=observation.account,
        facts=observation.facts,
        delay_tests=observation.delays,
        notes=notes,
        disturbance=disturbance,
    )


def _bounded(findings: Sequence[Finding], found: Bottleneck, delays: DelayTests | Unknown) -> list[Finding]:
    """Bound what findings of the bottleneck save by the slack of the other parts, where delays showed it."""
    most = most_saved(found, delays)
    if most is None:
        return list(findings)
    share, other = most
    told = (
        f"Delays show that {other} takes over as the bottleneck once {words.share(share)} of a step is saved."
    )
    rules = all_rules()

    def bounded(finding: Finding) -> Finding:
        family = rules[finding.id].family if finding.id in rules else None
        is_of_it = finding.kind == "speed" and found in _bottlenecks(finding, family)
        if not is_of_it or isinstance(finding.share, Unknown) or finding.share <= share:
            return finding
        return msgspec.structs.replace(finding, share=share, evidence=[*finding.evidence, told])

    return [bounded(finding) for finding in findings]


def _with_predictions(finding: Finding, predicted: Mapping[str, Predicted], num_workers: int) -> Finding:
    """Return the finding with the predicted saving of each of its settings, where the timeline gives a
    prediction.

    A prediction for a knob without a value is for more workers than the loader's `num_workers`.
    """

    def of(one: Setting) -> Predicted | None:
        more = one.knob == "loader.num_workers" and isinstance(one.value, int) and one.value > num_workers
        return predicted.get(one.knob if more else str(one))

    known = {str(one): found for one in finding.candidates if (found := of(one)) is not None}
    return msgspec.structs.replace(finding, predicted=known) if known else finding


def _disturbance(observation: Observation) -> str:
    """Say how many cores other programs used during the run; "" if only few, or if that is not known."""
    taken, cores = (observation.facts.get(name) for name in ("window.others_cpu_s_per_s", "host.num_cores"))
    if not isinstance(taken, int | float) or not isinstance(cores, int | float) or taken < DISTURBED * cores:
        return ""
    return f"others used {taken / cores:.0%} of the cores"


def bottleneck(attribution: Attribution) -> Bottleneck:
    """Return the largest avoidable part if it takes a tenth of a step, else the device if it works most of
    the time."""
    largest, share = max(avoidable(attribution).items(), key=lambda part: part[1])
    if share >= LEAST_AVOIDABLE:
        return largest
    busy = attribution.busy_share
    works = attribution.shares.device >= OPERATORS_DOMINATE if busy is None else busy >= DEVICE_BUSY
    return "device" if works else "none"


def avoidable(attribution: Attribution) -> dict[Bottleneck, float]:
    """Return the shares of all parts that a better program would avoid; of equal shares, the preferred one
    first."""
    shares = attribution.shares
    allocating = min(shares.host, sum(loss.share for loss in attribution.lost_time if _allocates(loss.id)))
    # Without late batches, the work for which the device then waits would already be queued.
    idle = sum(loss.share for loss in attribution.lost_time if loss.id == "loader-bound")
    beyond = max(0.0, attribution.counterfactual_savings.get("loader-bound", 0.0) - idle) if idle else 0.0
    late = min(shares.host - allocating, beyond)
    has_device = attribution.busy_share is not None
    waiting = sum(loss.share for loss in attribution.lost_time if loss.id == IMBALANCE and has_device)
    return {
        "input": shares.input + late,
        "transfer": shares.transfer,
        # The shares are those of the slowest rank, for which the others wait.
        "communication": max(shares.communication, waiting),
        "memory": allocating,
        "host": shares.host - allocating - late,
    }


def verdict(
    timing: Timing | Unknown,
    attribution: Attribution | Unknown,
    found: Bottleneck,
    findings: Sequence[Finding],
    *,
    of_loader: Place = NOWHERE,
) -> str:
    """State in one sentence how long a step takes, the largest loss and its place, and the finding that
    explains it.

    Args:
        of_loader: the place where the program draws from its loader, for a verdict whose trace has no place.
    """
    if isinstance(timing, Unknown):
        return f"No step was timed: {timing.reason}."
    takes = f"A step takes {words.duration(timing.step_s)}"
    if isinstance(attribution, Unknown):
        waits = (
            ""
            if timing.wait_s is None
            else f" and waits {words.duration(timing.wait_s)} of it for the data loader"
        )
        return f"{takes}{waits}; where the rest goes is not known: {attribution.reason}."
    leading = leading_finding(found, findings)
    told = "" if leading is None or _is_general(leading) else f": {_as_clause(leading.claim)}"
    places = [leading.where] if leading else []
    places += [_where(attribution, found), of_loader if found == "input" else NOWHERE]
    where = next((place for place in places if FUNCTION.match(place.function)), NOWHERE)
    idle = next((finding for finding in findings if finding.id == OF_IDLE), None)
    if idle is not None:
        works = f"Operators run for {words.share(attribution.shares.device)} of it."
        return f"{takes}; {_as_clause(idle.claim)}. {works}"
    rare = _of_some_steps(findings) if found in ("device", "none") else None
    if rare is not None:
        return f"{takes}; {_as_clause(rare.claim)}{_at(rare.where)}."
    return f"{takes}; {_said(attribution, found)}{_at(where)}{told}."


def _of_some_steps(findings: Iterable[Finding]) -> Finding | None:
    """Return the largest finding about work that only some steps do, if it takes much of the time."""
    rules = all_rules()
    found = [
        (finding.share, finding)
        for finding in findings
        if finding.id in rules
        and rules[finding.id].family == OF_SOME_STEPS
        and not isinstance(finding.share, Unknown)
    ]
    share, finding = max(found, key=lambda pair: pair[0], default=(0.0, None))
    return finding if share >= LEAST_AVOIDABLE else None


def leading_finding(found: Bottleneck, findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding with a known cost that belongs to the bottleneck, as causes come first."""
    rules = all_rules()
    of_it = (
        finding
        for finding in findings
        if finding.kind == "speed"
        and not isinstance(finding.share, Unknown)
        and found in _bottlenecks(finding, rules[finding.id].family if finding.id in rules else None)
    )
    return next(of_it, None)


def _bottlenecks(finding: Finding, family: Family | None) -> set[Bottleneck]:
    """Return a finding's bottlenecks: by its cause in the trace, by causes it explains, or by its rule's
    family."""
    ids = (finding.id, *finding.also)
    causes = [CAUSES[id_] for id_ in ids if id_ in CAUSES]
    own = {cause.bottleneck for cause in causes if cause.bottleneck is not None}
    if own:
        return {"memory"} if "memory" in own else own
    known = {found for cause in causes if (found := bottleneck_of(cause.part)) is not None}
    return known or (set() if family is None else set(FAMILIES[family].bottlenecks))


def _allocates(cause: str) -> bool:
    """Return whether the host allocates and frees device memory in a cause."""
    return cause in CAUSES and CAUSES[cause].bottleneck == "memory"


def _is_general(finding: Finding) -> bool:
    return finding.id in CAUSES and CAUSES[finding.id].is_general


def _where(attribution: Attribution, found: Bottleneck) -> Place:
    """Return the place of the bottleneck's largest loss."""
    for loss in attribution.lost_time:
        part = CAUSES[loss.id].part if loss.id in CAUSES else "compute"
        if _allocates(loss.id) if found == "memory" else bottleneck_of(part) == found:
            return loss.where
    return NOWHERE


def _said(attribution: Attribution, found: Bottleneck) -> str:
    has_device = attribution.busy_share is not None
    if found == "device" or found == "none":
        if not has_device:
            works = f"{words.share(attribution.shares.device)} of it operators run on the CPU"
        else:
            works = f"the device works for {words.share(attribution.busy_share or 0.0)} of it"
        if found == "device":
            return works
        if attribution.shares.other >= LEAST_AVOIDABLE:
            return f"{works}, and what {words.share(attribution.shares.other)} of it goes to is not known"
        return f"{works}, and nothing that could be avoided takes a tenth of it"
    share = words.share(avoidable(attribution)[found])
    return f"{share} of it {BOTTLENECKS[found].words(has_device=has_device)}"


def _notes(observation: Observation) -> list[str]:
    """Return the warnings about this observation, each once."""
    notes = list(observation.notes)
    if not isinstance(observation.attribution, Unknown):
        notes += observation.attribution.notes
    if isinstance(observation.trace, Unknown):
        notes.append(f"There is no trace: {observation.trace.reason}")
    else:
        notes += observation.trace.notes
    return list(dict.fromkeys(notes))


def _at(where: Place) -> str:
    match = FUNCTION.match(where.function)
    if match is None:
        return ""
    within = f":{match['line']}" if match["line"] else f", {match['name']}"
    return f" ({match['file'].replace(chr(92), '/').rpartition('/')[2]}{within})"


def _as_clause(claim: str) -> str:
    """Return a claim as the end of a sentence, in lower case except for names."""
    text = claim.strip().removesuffix(".")
    first = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if first[1:].islower() or first in ("A", "") else text
