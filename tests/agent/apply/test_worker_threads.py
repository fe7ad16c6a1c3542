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
        program + 'out["left"] = loader.worker_init_fn.__reduce__()[1] == (begun,)\n', "loader.worker_threads=3"
    )
    assert done.out["left"] is True
    assert done.readback["loader.worker_threads"]["ok"] is False


def test_how_tensors_are_shared_is_set_and_read_back(child):
    program = 'import torch.multiprocessing as multi\nout["by"] = multi.get_sharing_strategy()\n'
    done = child(program, "loader.sharing_strategy=file_system")
    assert done.out["by"] == "file_system"
    assert done.readback["loader.sharing_strategy"]["ok"] is True
