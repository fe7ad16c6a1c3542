"""From the events of those who make batches to the loader that they are made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynotune.launch.records.batch_costs import with_loading
from dynotune.launch.records.record import Record
from dynotune.schema.errors import RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader
from dynotune.schema.trace_summary import Place

from ...fakes import take


def fetching(at_s: float, num: int, **fields: Any) -> dict[str, Any]:
    """Counts of worker 0 since it began at 10 s: 20 ms a batch, 5 of them collating."""
    usual = {
        "event": "fetching",
        "drawn_by": 1,
        "worker": 0,
        "num_workers": 2,
        "at_s": at_s,
        "begin_s": 10.0,
        "num": num,
        "fetch_s": 0.02 * num,
        "collate_s": 0.005 * num,
        "decode_s": 0.0,
        "cpu_s": 0.01 * num,
        "longest_s": 0.03,
        "decoders": [],
        "private_bytes": None,
        "dataset": "__main__.Data",
        "collate": "train.stack",
        "num_items": 100,
        "items_at": "train.py(3): __getitem__",
        "collate_at": "",
        "num_objects": 7,
    }
    return usual | fields


def record(pid: int, *events: dict[str, Any]) -> Record:
    return take(Record(path=Path("x.rec"), pid=pid, start_s=0.0), *events)


LOADER = Loader(
    name="DataLoader", dataset="__main__.Data", collate="train.stack", num_items=100, num_workers=2
)
WORKER = [fetching(10.5, 25, longest_s=0.9), fetching(12.0, 100), fetching(13.0, 150), fetching(14.0, 200)]


def loading(
    *records: Record, loaders: tuple[Loader, ...] = (LOADER,), window: tuple[float, float] = (11.0, 13.5)
) -> Any:
    return with_loading(loaders, 1, records, *window)[0].loading


def test_counts_are_those_that_grew_within_the_window():
    told = loading(record(1), record(2, *WORKER))
    assert told.num_batches == 125  # from the last word before the window to the last one in it
    assert told.fetch_s == pytest.approx(0.02)
    assert told.collate_s == pytest.approx(0.005)
    assert told.longest_s == 0.03
    assert told.busy_share == pytest.approx(125 * 0.02 / 2.5)
    assert told.items == Place("train.py(3): __getitem__")


def test_workers_are_taken_together():
    other = [fetching(at, num, worker=1, fetch_s=0.04 * num) for at, num in ((10.5, 25), (13.0, 150))]
    told = loading(record(2, *WORKER), record(3, *other))
    assert told.num_batches == 250
    assert told.fetch_s == pytest.approx(0.03)


def test_workers_of_somebody_else_are_left_out():
    assert loading(record(2, *WORKER), record(3, fetching(13.0, 9, drawn_by=5))).num_batches == 125


def test_a_process_that_makes_batches_itself_has_no_workers_time():
    own = [fetching(at, num, worker=None, num_workers=0) for at, num in ((10.5, 25), (13.0, 150))]
    alone = msgspec.structs.replace(LOADER, num_workers=0)
    assert loading(record(1, *own), loaders=(alone,)).busy_share is None


def test_a_process_that_replaced_itself_counts_from_its_new_begin():
    usual: dict[str, Any] = {"worker": None, "num_workers": 0}
    first = [fetching(at, num, **usual) for at, num in ((10.2, 10), (10.6, 60))]
    second = [fetching(at, num, begin_s=11.2, **usual) for at, num in ((12.0, 20), (13.0, 45))]
    alone = msgspec.structs.replace(LOADER, num_workers=0)
    assert loading(record(1, *first, *second), loaders=(alone,)).num_batches == 45


def test_loaders_are_told_apart_by_their_data_set_and_its_length():
    validation = [fetching(13.0, 10, num_items=10, fetch_s=1.0)]
    small = msgspec.structs.replace(LOADER, num_items=10)
    records = [record(2, *WORKER), record(3, *validation)]
    both = with_loading([LOADER, small], 1, records, 11.0, 13.5)
    assert [one.loading.num_batches for one in both] == [125, 10]


def test_a_loader_whose_workers_said_nothing_is_unknown():
    assert isinstance(loading(record(1)), Unknown)
    assert isinstance(loading(record(2, *WORKER), window=(20.0, 21.0)), Unknown)


def test_growth_of_memory_leaves_out_the_begin_and_stands_for_all_workers():
    levels = {10.5: 10, 11.5: 50, 13.5: 90}
    events = [fetching(at, int(at), private_bytes=level << 20) for at, level in levels.items()]
    told = loading(record(2, *events))
    assert told.private_growth_bytes == 80 << 20  # 40 MiB in the one that was followed, of two
    assert told.private_over_s == 2.0


def test_pinning_is_of_the_process_that_draws():
    counts = [{"at_s": 10.5, "num": 100, "pin_s": 1.0}, {"at_s": 13.0, "num": 200, "pin_s": 1.5}]
    pinning = [{"event": "pinning", **each} for each in counts]
    pinned = msgspec.structs.replace(LOADER, pin_memory=True)
    told = loading(record(1, *pinning), record(2, *WORKER), loaders=(pinned,))
    assert told.pin_s == pytest.approx(0.005)
    assert loading(record(1), record(2, *WORKER), loaders=(pinned,)).pin_s is None


def test_a_damaged_event_is_an_error():
    with pytest.raises(RecordError, match="not as dynotune's agent writes events"):
        loading(record(2, {"event": "fetching", "drawn_by": 1}))


def test_parts_of_all_workers_are_taken_together_without_their_warm_up():
    def rows(num_read, **more):
        named = {"read": num_read, **more}
        return [{"part": part, "num": num, "wall_s": num * 0.01} for part, num in named.items()]

    one = [fetching(10.5, 25, parts=rows(90)), fetching(12.0, 100, parts=rows(100, own=40))]
    brief = [fetching(10.6, 30, worker=1, parts=rows(10))]
    parts = loading(
        record(2, *one, fetching(14.0, 200, parts=rows(500))), record(3, *brief), window=(10.0, 13.5)
    ).parts
    assert [(part.part, part.num) for part in parts] == [("own", 40), ("read", 20)]
    assert parts[1].wall_s == pytest.approx(0.2)


def test_bytes_that_makers_read_are_told_for_a_batch_where_the_kernel_does():
    counts = [
        fetching(at, num, read_bytes=1000 * num, storage_bytes=250 * num)
        for at, num in ((10.5, 25), (13.0, 75))
    ]
    told = loading(record(2, *counts))
    assert (told.read_bytes, told.storage_bytes) == (1000, 250)
    assert loading(record(2, *counts), record(3, *WORKER)).read_bytes is None


def test_faults_and_time_in_the_kernel_are_means_of_a_batch_when_every_maker_counts_them():
    counts = [
        fetching(at, num, num_faults=40 * num, system_s=0.002 * num) for at, num in ((10.5, 25), (13.0, 75))
    ]
    told = loading(record(2, *counts))
    assert (told.num_faults, told.system_s) == (40, pytest.approx(0.002))
    assert loading(record(2, *counts), record(3, *WORKER)).num_faults is None
