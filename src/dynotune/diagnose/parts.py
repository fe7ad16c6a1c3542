"""A step of a program with a device in seconds: as it was recorded, and brought to a plain step."""

from __future__ import annotations

import msgspec

from dynotune.schema.trace_summary import DeviceTime


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a program with a device, in seconds that sum to it.

    Args:
        compute, copy, communication: the device's own time; of the latter two what is exposed.
        queued: the device was idle and work for it was queued all the while.
        loader, sync, host: it waited for the loader, after a synchronisation, for the host otherwise.
        late: work that was queued into an idle device had not started yet.
        other: it is not known what it waited for.
        garbage: garbage was collected in steps that were not recorded.
        unseen: what else the plain step is longer by than all that was recorded.
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
    """A recorded step of this device. Copies that run under a collective count as communication."""
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
    """The recorded step as it would be had it not begun with a device that the recorder had waited for."""
    first, usual = device.first_gap, device.usual_gap
    if first is None or usual is None:
        return seen

    def instead(name: str) -> float:
        part_s: float = getattr(seen, name)
        beyond_s: float = getattr(usual, f"{name}_s") - getattr(first, f"{name}_s")
        return max(0.0, part_s + beyond_s / num_steps)

    return msgspec.structs.replace(seen, **{name: instead(name) for name in ("host", "loader", "sync", "other")})


def plain_parts(
    seen: Parts, step_s: float, wait_s: float, *, most_wait_s: float = 0.0, garbage_s: float = 0.0
) -> Parts:
    """The recorded step `seen`, brought to a plain step of `step_s`.

    Every part keeps its seconds, in this order, as far as the step has room for them: the device's own time, what was
    queued, the loader, synchronisations, what is not known, the host with work that started late. A plain step that is
    longer than all of it is so by steps that are slow now and then, none of which was recorded: that time goes to the
    loader and to collections of garbage as far as these are known to take it, and else nobody knows where.

    Args:
        wait_s: of a plain step, waiting for the loader while the device was idle.
        most_wait_s: of a plain step, waiting for the loader whatever the device did.
        garbage_s: of a plain step, collecting garbage.
    """
    fits = min(1.0, step_s / seen.busy) if seen.busy else 1.0
    left_s = max(0.0, step_s - seen.busy * fits)
    kept: dict[str, float] = {}
    for name, wanted_s in (("queued", seen.queued), ("loader", wait_s), ("sync", seen.sync), ("other", seen.other)):
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
