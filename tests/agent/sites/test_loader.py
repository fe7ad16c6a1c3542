"""`loader.*` on loaders that programs build in all the ways they do."""

import pytest

LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
data = TensorDataset(torch.arange(16.0))
"""


def test_every_loader_gets_the_workers_by_position_by_keyword_and_by_default(child):
    done = child(
        LOADER
        + """
by_position = DataLoader(data, 4, False, None, None, 3, multiprocessing_context="fork")
loaders = [DataLoader(data, 4), by_position, DataLoader(data, num_workers=2)]
out["workers"] = [loader.num_workers for loader in loaders]
out["values"] = [sorted(x for (batch,) in loader for x in batch.tolist()) for loader in loaders[:2]]
""",
        "loader.num_workers=1",
    )
    assert done.out["workers"] == [1, 1, 1]
    assert done.out["values"] == [[float(x) for x in range(16)]] * 2
    assert done.readback["loader.num_workers"]["ok"] is True
    assert done.readback["loader.num_workers"]["found"] == "1"


def test_a_program_without_workers_gets_them_however_python_starts_processes(script, run_under_agent):
    """Python 3.14 would run the program once more in each worker, which a program without workers need not
    allow."""
    program = LOADER + "print('begun')\nprint(sum(len(batch) for (batch,) in DataLoader(data, 4)))\n"
    site = {"type": "constructor", "targets": ["torch.utils.data.DataLoader"], "argument": "num_workers"}
    workers = {"knob": "loader.num_workers", "value": 2, "site": site, "keep": False}
    ran = run_under_agent([script(program)], settings=[workers])
    assert (ran.returncode, ran.stdout) == (0, "begun\n16\n"), ran.stderr
    assert [answer.ok for process in ran.processes for answer in process.readback] == [True]


def test_workers_that_a_program_asked_for_start_as_it_chose(child):
    done = child(
        LOADER
        + """
import multiprocessing
own = DataLoader(data, 4, num_workers=1, multiprocessing_context="spawn")
default = DataLoader(data, 4, num_workers=1)
multiprocessing.set_start_method("spawn")
chosen = DataLoader(data, 4)
context = lambda loader: getattr(loader.multiprocessing_context, "_name", None)
out["contexts"] = [context(own), context(default), context(chosen)]
""",
        "loader.num_workers=2",
    )
    assert done.out == {"contexts": ["spawn", None, None]}


def test_workers_and_what_needs_them_are_set_together(child):
    done = child(
        LOADER
        + """
loader = DataLoader(data, 4, shuffle=True)
for _ in range(2):
    list(loader)
out["takes_in_order"] = hasattr(loader, "in_order")
""",
        "loader.num_workers=1",
        "loader.persistent_workers=true",
        "loader.prefetch_factor=4",
        "loader.in_order=false",
        "loader.multiprocessing_context=fork",
    )
    assert len(done.readback) == 5
    if not done.out["takes_in_order"]:  # before torch 2.6
        assert "no such argument" in done.readback.pop("loader.in_order")["detail"]
    assert all(answer["ok"] is True for answer in done.readback.values()), done.readback
    assert done.readback["loader.multiprocessing_context"]["found"] == "fork"


def test_no_workers_takes_away_what_torch_would_refuse_without_them(child):
    done = child(
        LOADER
        + """
loader = DataLoader(data, 4, num_workers=2, persistent_workers=True, prefetch_factor=8, timeout=30,
                    multiprocessing_context="fork")
out["num"] = len(list(loader))
""",
        "loader.num_workers=0",
    )
    assert done.out["num"] == 4
    assert done.readback["loader.num_workers"]["ok"] is True


def test_worker_settings_are_refused_with_the_reason_when_a_loader_has_no_workers(child):
    done = child(
        LOADER + "list(DataLoader(data, 4))", "loader.prefetch_factor=4", "loader.persistent_workers=true"
    )
    for answer in done.readback.values():
        assert answer["ok"] is False
        assert "num_workers above 0" in answer["detail"]


def test_a_call_that_torch_refuses_raises_torchs_own_error(child):
    done = child(
        LOADER
        + """
twice = {"batch_size": 2, "batch_sampler": [[0]]}
for arguments in ({}, {"dataset": data, "wrong": 1}, {"dataset": data, **twice}):
    try:
        DataLoader(**arguments)
    except Exception as error:
        out.setdefault("errors", []).append(type(error).__name__)
""",
        "loader.num_workers=1",
    )
    assert done.out["errors"] == ["TypeError", "TypeError", "ValueError"]
    assert done.errors() == []


def test_subclasses_pickling_and_the_signature_are_as_before(child):
    done = child(
        LOADER
        + """
import copy, inspect, pickle
class Own(DataLoader):
    def __init__(self, *args, extra=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra
own = Own(data, batch_size=4, extra=5)
again = pickle.loads(pickle.dumps(own))
out["own"] = [own.num_workers, again.num_workers, copy.copy(own).extra, own.extra]
out["parameters"] = list(inspect.signature(DataLoader.__init__).parameters)[:3]
list(own)
""",
        "loader.num_workers=1",
    )
    assert done.out == {"own": [1, 1, 5, 5], "parameters": ["self", "dataset", "batch_size"]}
    assert done.readback["loader.num_workers"]["ok"] is True


def test_a_loader_class_that_sets_its_own_workers_is_found_out(child):
    done = child(
        LOADER
        + """
class Own(DataLoader):
    def __init__(self, data):
        super().__init__(data, 4)
        self.num_workers = 0
list(Own(data))
""",
        "loader.num_workers=2",
    )
    assert done.readback["loader.num_workers"]["ok"] is False
    assert done.readback["loader.num_workers"]["found"] == "0"


def test_a_program_without_a_loader_is_told_so(child):
    done = child(LOADER + "DataLoader(data)", "loader.num_workers=2")
    assert done.readback["loader.num_workers"]["ok"] is False
    assert done.readback["loader.num_workers"]["detail"] == "the program drew from no torch DataLoader"


def test_workers_are_refused_on_an_iterable_dataset_that_does_not_shard(child):
    done = child(
        LOADER
        + """
class Stream(IterableDataset):
    def __iter__(self):
        yield from range(8)
loader = DataLoader(Stream(), 4)
out["values"] = [x for batch in loader for x in batch.tolist()]
""",
        "loader.num_workers=2",
        "loader.prefetch_factor=4",
    )
    assert done.out["values"] == list(range(8))
    answer = done.readback["loader.num_workers"]
    assert (answer["ok"], answer["found"]) == (False, "0")
    assert "Stream is an IterableDataset" in answer["detail"]
    assert done.readback["loader.prefetch_factor"]["ok"] is False


def test_workers_are_given_to_every_kind_of_iterable_dataset_that_shards(child):
    done = child(
        LOADER
        + """
import functools, torch.utils.data as d
from torch.utils.data import ChainDataset
def share(values):
    info = get_worker_info()
    return values[info.id::info.num_workers] if info else values
class Itself(IterableDataset):
    def __iter__(self):
        info = d.get_worker_info()
        yield from range(0 if info is None else info.id, 8, 1 if info is None else info.num_workers)
class ByFunction(IterableDataset):
    def __iter__(self):
        return iter(share(range(8)))
class ByMethod(IterableDataset):
    @property
    def mine(self):
        return share(range(8))
    def __iter__(self):
        return iter(self.mine)
class Wrapping(IterableDataset):
    def __init__(self, inner):
        self.inner = inner
    def __iter__(self):
        yield from self.inner
class Plain(IterableDataset):
    def __init__(self):
        self.values = list(range(8))
    def __iter__(self):
        return iter(self.values)
def worker_init(worker_id):
    info = get_worker_info()
    info.dataset.values = info.dataset.values[worker_id::info.num_workers]
loaders = {
    "itself": DataLoader(Itself(), 2),
    "function": DataLoader(ByFunction(), 2),
    "method": DataLoader(ByMethod(), 2),
    "wrapped": DataLoader(Wrapping(Wrapping(Itself())), 2),
    "chained": DataLoader(ChainDataset([ByFunction()]), 2),
    "worker_init_fn": DataLoader(Plain(), 2, worker_init_fn=worker_init),
    "partial": DataLoader(Plain(), 2, worker_init_fn=functools.partial(worker_init)),
}
for name, loader in loaders.items():
    out[name] = [loader.num_workers, sorted(x for batch in loader for x in batch.tolist())]
""",
        "loader.num_workers=2",
    )
    assert len(done.out) == 7
    for name, found in done.out.items():
        assert found == [2, list(range(8))], name
    assert done.readback["loader.num_workers"]["ok"] is True


def test_pinning_without_a_gpu_is_not_taken_for_pinning(child):
    done = child(
        LOADER + "out['cuda'] = torch.cuda.is_available()\nlist(DataLoader(data))", "loader.pin_memory=true"
    )
    if not done.out["cuda"]:
        assert done.readback["loader.pin_memory"]["ok"] is False
        assert "without a GPU" in done.readback["loader.pin_memory"]["detail"]


def test_a_stream_of_a_sharding_library_is_trusted_and_a_table_of_it_is_not(child):
    done = child(
        LOADER
        + """
class HubStream(IterableDataset):
    def __iter__(self):
        return iter([1, 2])
HubStream.__name__, HubStream.__module__ = "IterableDataset", "datasets.iterable_dataset"
class Table:
    def __iter__(self):
        return iter([1, 2])
Table.__module__ = "datasets.arrow_dataset"
class Over(IterableDataset):
    def __init__(self, inner):
        self.inner = inner
    def __iter__(self):
        return iter(self.inner)
out["stream"] = DataLoader(HubStream()).num_workers
out["over stream"] = DataLoader(Over(HubStream())).num_workers
out["over table"] = DataLoader(Over(Table())).num_workers
""",
        "loader.num_workers=2",
    )
    assert done.out == {"stream": 2, "over stream": 2, "over table": 0}


def test_a_worker_init_fn_that_only_seeds_does_not_count_as_sharding(child):
    pytest.importorskip("transformers")
    done = child(
        LOADER
        + """
import functools
from transformers.trainer_utils import seed_worker
class Stream(IterableDataset):
    def __iter__(self):
        yield from range(8)
init = functools.partial(seed_worker, num_workers=2, rank=0)
out["workers"] = DataLoader(Stream(), worker_init_fn=init).num_workers
""",
        "loader.num_workers=2",
    )
    assert done.out == {"workers": 0}
