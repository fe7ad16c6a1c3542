"""`loader.worker_threads` and `loader.sharing_strategy`: what holds in workers."""

import pytest

THREADS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Threads(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        import cv2
        return torch.tensor([torch.get_num_threads(), cv2.getNumThreads(), OWN[0]])

OWN = [0]
def begun(worker):
    OWN[0] = 7

out["here"] = torch.get_num_threads()
loader = DataLoader(Threads(), 1, num_workers=2, worker_init_fn=begun, multiprocessing_context=CONTEXT)
"""


def test_each_worker_has_the_threads_asked_for_and_the_programs_own_begin(child):
    pytest.importorskip("cv2")
    program = 'CONTEXT = "fork"' + THREADS + 'out["seen"] = [batch[0].tolist() for batch in loader]\n'
    as_it_is, done = child(program), child(program, "loader.worker_threads=3")
    assert as_it_is.out["seen"][0][::2] == [1, 7]
    assert done.out == {"here": as_it_is.out["here"], "seen": [[3, 3, 7]] * 4}
    assert done.readback["loader.worker_threads"]["ok"] is True
    assert done.readback["loader.worker_threads"]["detail"] == "2 workers"


def test_a_worker_that_is_not_forked_gets_the_programs_own_begin_alone(child):
    program = 'CONTEXT = "spawn"' + THREADS
    done = child(
        program + 'out["left"] = loader.worker_init_fn.__reduce__()[1] == (begun,)\n',
        "loader.worker_threads=3",
    )
    assert done.out["left"] is True
    assert done.readback["loader.worker_threads"]["ok"] is False


USED = """
import cv2, numpy, torch
torch.set_num_threads(2)
cv2.setNumThreads(2)
picture = numpy.ones((2000, 2000, 3), numpy.uint8)
def work():
    cv2.GaussianBlur(picture, (31, 31), 5)
    return float((torch.ones(1000, 1000) @ torch.ones(1000, 1000)).sum())
out["before"] = work()
class Work(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.tensor([work(), torch.get_num_threads(), cv2.getNumThreads()], dtype=torch.float64)
out["seen"] = [one[0].tolist() for one in torch.utils.data.DataLoader(Work(), 1, num_workers=1, timeout=60)]
out["after"] = [work(), torch.get_num_threads(), cv2.getNumThreads()]
"""


@pytest.mark.parametrize("num", [1, 3])
def test_workers_do_not_wait_for_threads_that_a_fork_left_behind(child, num):
    pytest.importorskip("cv2")
    done = child(USED, f"loader.worker_threads={num}")
    assert done.out == {"before": 1e9, "seen": [[1e9, num, num]] * 2, "after": [1e9, 2, 2]}
    assert done.readback["loader.worker_threads"]["ok"] is True


def test_a_library_that_refuses_is_no_concern_of_the_worker(child):
    program = """
import sys, types, torch
sys.modules["cv2"] = types.SimpleNamespace(getNumThreads=lambda: 1)
class Two(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return index
out["seen"] = [int(one) for one in torch.utils.data.DataLoader(Two(), 1, num_workers=1)]
"""
    done = child(program, "loader.worker_threads=1")
    assert done.out["seen"] == [0, 1]
    answer = done.readback["loader.worker_threads"]
    assert (answer["ok"], answer["detail"]) == (False, "1 of 1 workers could not be set")


def test_sharing_strategy_is_set_and_read_back(child):
    program = 'import torch.multiprocessing as multi\nout["by"] = multi.get_sharing_strategy()\n'
    done = child(program, "loader.sharing_strategy=file_system")
    assert done.out["by"] == "file_system"
    assert done.readback["loader.sharing_strategy"]["ok"] is True
