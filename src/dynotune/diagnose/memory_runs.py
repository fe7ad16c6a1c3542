"""Account for device memory and predict what fits, by live runs that record the allocator at one or more
batches.

Without a GPU the runs use a pretended one, and predicted memory takes the place of measured memory.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynotune import memory, probe
from dynotune.diagnose.window import window_from_now, window_within
from dynotune.doctor import ObservationView, examine
from dynotune.launch.records import Record
from dynotune.measure.live import TaskRunner, Watcher, facts_of, machine_lock, refuse_failed, refuse_rejected
from dynotune.schema import document
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.errors import CannotRunHere, from_elsewhere
from dynotune.schema.events import AllocationsRecorded, HistoryRecorded, NotModelled
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, DeviceOwners, Moment, Owners, RankMemory
from dynotune.schema.observation import Observation
from dynotune.schema.run import PretendedGpu, RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.task import RecordHistory, RecordMemory
from dynotune.trace.snapshot import Lives, load_snapshot

USUAL_S = 20.0
"""Seconds that most commands take to steady steps and a record of memory, as the bar of progress counts."""
NUM_STEPS = 2
EARLY_STEP = 3
"""Step at which the recorded history ends: the steps before it create the optimizer's states and all lasting
blocks."""
NUM_BEFORE = 30
BESIDE_LIMIT_S = 60.0
"""Time limit in seconds when a diagnosis also records memory, since its main subject is time."""
MAX_SNAPSHOT_BYTES = 1 << 30
PRETENDED_WARMUP_STEPS = 1
"""The first step creates the optimizer's states."""
KERNELS_SPREAD = 0.03
"""Relative error of activations and temporary buffers: memory that kernels take themselves is only partly
known."""
NOT_ASKED = Unknown("it was not asked before the start")
Recorded = tuple[RankMemory, Lives | None]
"""Memory of one rank on one device, and its blocks: since the start, or only those of the recorded steps."""


def live_memory(
    run: RunSpec,
    watcher: Watcher,
    *,
    batches: Sequence[Setting] = (),
    card: str | None = None,
    asked: Sequence[int] = (),
) -> tuple[MemoryAccount, Path]:
    """Run the command, once or with each batch, and account for its memory; without a GPU, on a pretended
    one.

    Args:
        batches: settings that each give one run another batch size (`arg.batch=8`); none for a single run.
        card: a card other than the device in use, by its name for `--gpu`.
        asked: further batch sizes to predict.

    Returns:
        The account, and the folder of the first run, which holds the account as `memory.json`.

    Raises:
        UsageError: no card has this name.
        CommandFailed: the command ended with an error, for instance out of memory.
        CannotRunHere: no memory could be recorded; the message has the reason.
    """
    gpu = memory.gpu(card) if card is not None else None
    if gpu is not None and not _num_gpus(run):
        # No time is measured, so other programs on this machine do not matter.
        run = msgspec.structs.replace(run, pretend=gpu, warmup_steps=PRETENDED_WARMUP_STEPS, lock=False)
    with machine_lock(run, watcher):
        runs = [_recorded(run, watcher, *settings) for settings in [[one] for one in batches] or [[]]]
        folder, ranks = runs[0][1], [rank for rank, _ in runs[0][0]]
        view = ObservationView(Observation(command=run.command, memory=ranks))
        findings = [one for one in examine(view, "program")[0] if one.id.startswith("memory-")]
        account = MemoryAccount(
            command=run.command,
            pretended="" if run.pretend is None else run.pretend.name,
            ranks=ranks,
            capacity=_capacity(
                [found for found, _, _ in runs],
                [int(one.value) for one in batches],
                card=card,
                limit_bytes=_limit_bytes(ranks[0], gpu),
                settings=_allocator(run),
                asked=asked,
            ),
            findings=findings,
            notes=[note for _, _, notes in runs for note in notes],
        )
    document.write(folder / "memory.json", account)
    return account, folder


def recorded_memory(runner: TaskRunner, run: RunSpec) -> list[Recorded]:
    """Record the allocator in a live run; return each rank's memory on each of its devices, and the
    allocator's blocks.

    Args:
        runner: of a live run in progress, or not yet started; then the command is started, again if it ends
            too soon.

    Raises:
        CommandFailed, CannotRunHere: see `live_memory`.
    """

    timed = msgspec.structs.replace(run, window_steps=NUM_STEPS)

    def now(records: Sequence[Record]) -> RecordMemory:
        return RecordMemory(at_step=window_from_now(records, timed).at_step, num_steps=NUM_STEPS)

    def within(record: Record) -> RecordMemory:
        return RecordMemory(at_step=window_within(record, timed).at_step, num_steps=NUM_STEPS)

    before: dict[int, probe.DeviceMemory | Unknown] = {}
    whole: dict[tuple[int, int], Lives] = {}
    if runner.live is not None:
        answer = runner.live.do(now(runner.live.records()), limit_s=BESIDE_LIMIT_S)
    elif run.pretend is not None:
        # From the second step on all steps allocate alike, and each takes long.
        runner.start([RecordMemory(at_step=PRETENDED_WARMUP_STEPS, num_steps=NUM_STEPS)])
        answer = runner.planned()
    else:
        before = {index: probe.device_memory(run.env, index) for index in range(_num_gpus(run))}
        runner.start([RecordHistory(at_step=EARLY_STEP)])
        whole = _since_start(runner)
        answer = runner.do(now, within, what="recorded")
    outcome = runner.outcome()
    recorded = answer.all(AllocationsRecorded)
    if not recorded:
        for record in outcome.all_records:
            if (event := record.last(NotModelled)) is not None:
                why = f"The memory cannot be predicted without a GPU: {event.reason}."
                raise CannotRunHere(why, hint="Run dynotune memory where there is one.")
        assert runner.launch is not None
        refuse_failed(outcome, runner.launch, runner.limit_s)
        hint = "Without a GPU, --gpu H100-80GB predicts it. dynotune memory FILE explains a snapshot."
        if run.pretend is not None:
            hint = "Run the command as on a machine with a GPU: it has to move its model and batches to cuda."
        why = f"No memory was recorded: {answer.reason or 'the command ended before'}."
        raise CannotRunHere(why, hint=f"{hint} The run is in {outcome.folder}.")
    steps = {record.pid: record.step_s for record in outcome.records}
    with from_elsewhere(outcome.folder):
        found = [rank for event in recorded for rank in _ranks(event, outcome.folder, run, before, steps)]
    return [(rank, whole.get((rank.pid or 0, rank.device), lives)) for rank, lives in found]


def _since_start(runner: TaskRunner) -> dict[tuple[int, int], Lives]:
    """Return the whole history of the first steps, by process and device, without histories that were cut
    short."""
    found: dict[tuple[int, int], Lives] = {}
    for event in runner.planned().all(HistoryRecorded):
        folder = runner.outcome().folder
        with from_elsewhere(folder):
            path = folder / Path(event.file).name
            for device, lives in load_snapshot(path, limit_bytes=MAX_SNAPSHOT_BYTES).items():
                if (
                    not lives.unknown
                    and lives.num_events <= memory.MOST_EVENTS
                    and all(life.born >= 0 for life in lives.lives)
                ):
                    found[event.pid, device] = lives
            path.unlink()  # the recording below tells more of each block
    return found


def _ranks(
    event: AllocationsRecorded,
    folder: Path,
    run: RunSpec,
    used_before: Mapping[int, probe.DeviceMemory | Unknown],
    steps: Mapping[int, Sequence[float]],
) -> list[Recorded]:
    """Return the memory of one process on each device. The process named the files: read only those in the
    folder."""
    owners = document.read(folder / Path(event.owners).name, Owners)
    snapshot = load_snapshot(folder / Path(event.file).name, limit_bytes=MAX_SNAPSHOT_BYTES)
    pid, first = event.pid, event.first_step
    before = steps.get(pid, [])[max(0, first - NUM_BEFORE) : first]
    found: list[Recorded] = []
    for device in owners.devices:
        lives = snapshot.get(device.device)
        if run.pretend is not None and lives is not None:
            found.append((_pretended(device, owners, lives, run, run.pretend), lives))
            continue
        now = probe.device_memory(run.env, device.device)
        own, how = probe.own_bytes(now, used_before.get(device.device, NOT_ASKED), pid, device.reserved_bytes)
        if isinstance(own, Unknown):
            how = f"not known, nor is its context or what others hold: {own.reason}"
        rank = memory.account(
            device,
            owners,
            lives,
            process_bytes=own,
            others_bytes=own
            if isinstance(own, Unknown)
            else max(0, device.total_bytes - device.free_bytes - own),
            pid=pid,
            rank=event.rank,
            before_s=statistics.median(before) if before else None,
            notes=[*owners.notes, *([f"the process's memory is {how}"] if how else [])],
        )
        found.append((rank, lives))
    return found


def _pretended(
    device: DeviceOwners, owners: Owners, lives: Lives, run: RunSpec, gpu: PretendedGpu
) -> RankMemory:
    """Return the memory that the process would hold on the GPU, with the allocator's blocks placed as
    there."""
    facts, settings = owners.facts, _allocator(run)
    if settings.unmodelled:
        raise CannotRunHere(f"{settings.unmodelled} of the allocator's settings is not modelled.")
    device, lives = memory.placed(device, lives, settings, limit_bytes=_share_of(device.total_bytes, facts))
    outside, spread, notes = memory.outside(
        gpu, str(facts.get("torch", "")), convolves=bool(facts.get("convolves"))
    )
    own, notes = device.reserved_bytes + outside, [*owners.notes, *notes]
    # The step time would be this machine's.
    rank = memory.account(device, owners, lives, process_bytes=own, others_bytes=0, notes=notes, step_s=None)
    if isinstance(rank.peak, Moment):
        spread += round(KERNELS_SPREAD * (rank.peak.of("activations") + rank.peak.of("temporary")))
    return msgspec.structs.replace(rank, spread_bytes=spread)


def _allocator(run: RunSpec) -> memory.AllocatorSettings:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return memory.AllocatorSettings.parse(next((run.env[name] for name in names if run.env.get(name)), ""))


def _limit_bytes(rank: RankMemory, card: PretendedGpu | None) -> int:
    """Return the bytes of the device, or of another card, that the command can use: the total less what
    others hold."""
    others = 0 if isinstance(rank.others_bytes, Unknown) else rank.others_bytes
    total = (rank.total_bytes or 0) if card is None else card.total_bytes
    free = total - others if card is None else total
    return min(free, _share_of(total, rank.facts) or free)


def _share_of(total_bytes: int, facts: Mapping[str, Any]) -> int | None:
    """Return the memory limit that the program set for itself; None without one."""
    share = facts.get("memory_fraction")
    return int(share * total_bytes) if isinstance(share, int | float) and 0 < share < 1 else None


def _num_gpus(run: RunSpec) -> int:
    visible = probe.nvml.visible_gpus(run.env)
    return 0 if isinstance(visible, Unknown) else len(visible)


def _recorded(run: RunSpec, watcher: Watcher, *settings: Setting) -> tuple[list[Recorded], Path, list[str]]:
    """Return the memory of each rank in one run, the run's folder, and notes."""
    what = " ".join(["the command", *map(str, settings), "until its steps are steady"])
    watcher.running(what, left_s=USUAL_S)
    facts = facts_of(run) if run.settings else {}
    run = msgspec.structs.replace(run, settings=[*run.settings, *settings])
    with TaskRunner(run, watcher, facts=facts, label="the recorded run") as runner:
        found = recorded_memory(runner, run)
        outcome = runner.outcome()
        refuse_rejected(outcome, "in the recorded run")
        steady = [] if runner.steady else ["The steps had not become steady when they were recorded."]
        return found, outcome.folder, steady


def _capacity(
    recorded: Sequence[Sequence[Recorded]], batches: Sequence[int], *, card: str | None, **known: Any
) -> Capacity | Unknown:
    """Return which batches fit, by the rank that holds most memory in each run."""
    if len(recorded) < 2 and card is None:
        return Unknown("one batch was run; --values arg.batch=8,16 predicts others")
    measured: dict[int, Moment] = {}
    histories: dict[int, Lives] = {}
    spread = 0
    for at, ranks in enumerate(recorded):
        peaks = [(rank.peak, rank, lives) for rank, lives in ranks if lives and isinstance(rank.peak, Moment)]
        if not peaks:
            return Unknown("no peak is known")
        peak, rank, lives = max(peaks, key=lambda one: one[0].total_bytes)
        batch = batches[at] if batches else rank.num_samples
        if batch is None:
            return Unknown("the number of samples of a step is not known: name the batch with --values")
        if isinstance(peak.process_bytes, Unknown):
            return Unknown(
                "the driver does not report the memory of the process, so no total can be predicted"
            )
        if batch in measured:
            return Unknown(f"every run had a batch of {batch}: the argument does not change the batch")
        measured[batch], histories[batch] = peak, lives
        spread = max(spread, rank.spread_bytes)
    name = card or f"GPU {recorded[0][0][0].device}"
    return memory.capacity(measured, card=name, spread_bytes=spread, histories=histories, **known)
