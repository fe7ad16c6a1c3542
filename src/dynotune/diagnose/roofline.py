"""Distance to the limit: the operations and bytes of a step, against the peaks that its device reaches."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune import probe
from dynotune.diagnose.attributed import uses_device
from dynotune.diagnose.peaks import Peaks, peaks
from dynotune.diagnose.profiled import in_words
from dynotune.measure.live import Recorder, RecordRequest, TaskRunner, Watcher
from dynotune.schema.diagnosis import Roofline
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import ProcessState
from dynotune.schema.run import RunSpec
from dynotune.trace.facts import Work, flops

NUM_STEPS = 3
TF32 = "tf32"


def find_roofline(
    runner: TaskRunner, run: RunSpec, watcher: Watcher, processes: Sequence[ProcessState]
) -> Roofline | Unknown:
    """Return how long a step of the first rank would take if only products, convolutions and attention took time.

    The shapes of its operations are recorded in the live run, which ends then; the device's peaks are probed.
    """
    if not processes:
        return Unknown("no process of the command made steps")
    timing, live = processes[0].timing, processes[0].live
    if isinstance(timing, Unknown):
        return timing
    watcher.running("the shapes of its operations")
    work = _work(runner, run)
    runner.end()
    if isinstance(work, Unknown):
        return work
    by_type = in_types(work, live)
    watcher.running("the peaks of the device")
    num_threads = live.get("live.num_threads")
    reached = peaks(
        probe.interpreter(run.command, run.env, run.cwd),
        list(by_type),
        uses_device=uses_device(processes),
        num_threads=num_threads if isinstance(num_threads, int) else None,
        cwd=run.cwd,
        env=run.env,
    )
    return reached if isinstance(reached, Unknown) else judged(work, by_type, reached, timing.step_s)


def _work(runner: TaskRunner, run: RunSpec) -> Work | Unknown:
    recorder = Recorder(runner)
    try:
        traces = recorder.record(RecordRequest(run=run, shapes=True, num_steps=NUM_STEPS))
        if traces is None:
            raise recorder.no_trace()
        return flops.work_of_step(traces[0])
    except DynotuneError as error:
        return Unknown(f"its operations were not recorded: {in_words(error)}")
    except MemoryError:
        return Unknown("the trace is too large for the memory of this machine")


def in_types(work: Work, live: Facts) -> dict[str, float]:
    """Operations by the type that they are made in: float32 may be tf32."""
    found: dict[str, float] = {}
    for (type_, is_convolution), num in work.flops.items():
        precision = live.get("live.conv_fp32_precision" if is_convolution else "live.matmul_fp32_precision")
        name = TF32 if type_ == "float32" and precision == TF32 else type_
        found[name] = found.get(name, 0.0) + num
    return found


def judged(work: Work, by_type: dict[str, float], reached: Peaks, step_s: float) -> Roofline | Unknown:
    """The least time of a step, and its share of `step_s`."""
    missing = [name for name in by_type if not reached.flops_per_s.get(name)]
    if missing:
        return Unknown(f"no peak was reached in {missing[0]}: {reached.unknown.get(missing[0], 'it was not probed')}")
    if not reached.bytes_per_s:
        return Unknown(f"no peak of memory was reached: {reached.unknown.get('copy', 'it was not probed')}")
    operations_s = sum(num / reached.flops_per_s[name] for name, num in by_type.items())
    bytes_s = work.num_bytes / reached.bytes_per_s
    notes = list(work.notes)
    if len(by_type) > 1:
        parts = ", ".join(f"{num / work.total:.0%} in {name}" for name, num in by_type.items())
        notes.append(f"operations {parts}")
    least_s = max(operations_s, bytes_s)
    if bytes_s > max(step_s, operations_s):
        notes.append("operands come from the processor's caches, faster than from memory: bytes set no limit here")
        least_s = operations_s
    if least_s > step_s:
        notes.append("a step takes less than the probe's peaks allow: the device was slower while it was probed")
    return Roofline(
        flops=work.total,
        num_bytes=work.num_bytes,
        dtype=" and ".join(by_type),
        peak_flops_per_s=work.total / operations_s,
        peak_bytes_per_s=reached.bytes_per_s,
        least_s=least_s,
        share=min(1.0, least_s / step_s),
        notes=notes,
    )
