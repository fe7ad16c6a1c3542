"""Split a recorded step into parts, and rescale them to the length of a plain (unrecorded) step.

A recorder slows the host, but not the device. So the plain window gives the length of a step and its wait for
batches, and the trace gives the time that the device spends on each kind of work. The rest of a step is the
host's. docs/reference/diagnosis.md defines the parts.
"""

import msgspec

from dynotune.schema.trace_summary import DeviceTime


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one step of a program with a device, split into parts. All are in seconds and sum to the step's
    length.

    Args:
        compute, copy, communication: device time; copies and communication only where no other work runs
            beside them.
        queued: the device was idle although work for it was queued.
        loader, sync, host: the device was idle because of the data loader, a synchronisation, or the host's
            other work.
        late: work had been launched on the idle device but had not started yet.
        other: the device was idle for an unknown reason.
        garbage: Python collected garbage in steps that were not recorded.
        unseen: the rest of the unrecorded step, which no recorded part explains.
    """

    compute: float = 0.0
    copy: float = 0.0
    communication: float = 0.0
    queued: float = 0.0
    loader: float = 0.0
    sync: float = 0.0
    other: float = 0.0
    late: float = 0.0
    host: float = 0.0
    garbage: float = 0.0
    unseen: float = 0.0

    @property
    def busy(self) -> float:
        return self.compute + self.copy + self.communication


def parts_of(device: DeviceTime, num_steps: float) -> Parts:
    """Return the parts of a recorded step on this device. Copies that run under a collective count as
    communication."""
    overlap, idle = device.overlap, device.idle
    communication_s = overlap.communication_s + overlap.copy_and_communication_s
    late_s = min(device.late_s, idle.kernel_s)
    return Parts(
        compute=max(0.0, device.busy_s - overlap.copy_s - communication_s) / num_steps,
        copy=overlap.copy_s / num_steps,
        communication=communication_s / num_steps,
        queued=(idle.kernel_s - late_s) / num_steps,
        loader=idle.loader_s / num_steps,
        sync=idle.sync_s / num_steps,
        other=idle.other_s / num_steps,
        late=late_s / num_steps,
        host=idle.host_s / num_steps,
    )


def without_first_gap(seen: Parts, device: DeviceTime, num_steps: float) -> Parts:
    """Return the recorded step without the idle time at its start, when the device waited for the
    recorder."""
    first, usual = device.first_gap, device.usual_gap
    if first is None or usual is None:
        return seen

    def instead(name: str) -> float:
        part_s: float = getattr(seen, name)
        beyond_s: float = getattr(usual, f"{name}_s") - getattr(first, f"{name}_s")
        return max(0.0, part_s + beyond_s / num_steps)

    return msgspec.structs.replace(
        seen, **{name: instead(name) for name in ("host", "loader", "sync", "other")}
    )


def plain_parts(
    seen: Parts, step_s: float, wait_s: float, *, most_wait_s: float = 0.0, garbage_s: float = 0.0
) -> Parts:
    """Rescale the recorded step `seen` to an unrecorded step of `step_s` seconds.

    Every part keeps its seconds as far as the unrecorded step has room for them, in this order: the device's
    own time, queued work, the loader, synchronisations, unknown waits, and the host with work that started
    late. If the unrecorded step is longer than all parts together, some steps outside the recording were
    slow. Their extra time goes to the loader and to garbage collection, up to what was measured for these,
    and the rest to `unseen`.

    Args:
        wait_s: seconds of an unrecorded step in which the host waited for the loader and the device was idle.
        most_wait_s: seconds of an unrecorded step in which the host waited for the loader, with an idle or
            busy device.
        garbage_s: seconds of an unrecorded step that garbage collection takes.
    """
    fits = min(1.0, step_s / seen.busy) if seen.busy else 1.0
    left_s = max(0.0, step_s - seen.busy * fits)
    kept: dict[str, float] = {}
    for name, wanted_s in (
        ("queued", seen.queued),
        ("loader", wait_s),
        ("sync", seen.sync),
        ("other", seen.other),
    ):
        kept[name] = min(wanted_s, left_s)
        left_s -= kept[name]
    waited = seen.late + seen.host
    host_s = min(waited, left_s)
    late = host_s * seen.late / waited if waited else 0.0
    left_s -= host_s
    more = min(left_s, max(0.0, most_wait_s - kept["loader"]))
    kept["loader"] += more
    garbage = min(left_s - more, garbage_s)
    return Parts(
        compute=seen.compute * fits,
        copy=seen.copy * fits,
        communication=seen.communication * fits,
        late=late,
        host=max(0.0, host_s - late),
        garbage=garbage,
        unseen=max(0.0, left_s - more - garbage),
        **kept,
    )
