"""A training that loads the agent itself while it runs, in the way in which an injected script does.

    python joined_program.py RUN_FOLDER AGENT CASE

It lets go of the agent in a moment that the case names, goes on until the agent has left, and prints what
differs from before as JSON.
"""

import _thread
import fcntl
import gc
import json
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from lab.interpreter_state import interpreter_state

FOLDER, AGENT, CASE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
MOST_STEPS = 100_000


class Samples(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, number):
        # A worker says whether the agent is in it.
        return torch.full((8,), float(number)), int("_dynotune_agent" in sys.modules)


def load():
    loader = SourceFileLoader("_dynotune_agent", f"{AGENT}/__init__.py")
    spec = ModuleSpec("_dynotune_agent", loader, origin=loader.path, is_package=True)
    spec.submodule_search_locations, spec.has_location = [AGENT], True
    agent = type(sys)("_dynotune_agent")
    agent.__spec__, agent.__loader__, agent.__file__ = spec, loader, loader.path
    agent.__path__, agent.__package__ = [AGENT], "_dynotune_agent"
    sys.modules["_dynotune_agent"] = agent
    loader.exec_module(agent)
    agent.stay_while_held(str(FOLDER), str(FOLDER / "held.lock"), os.getpid())


def recorded(what):
    return any(what in path.read_bytes() for path in FOLDER.glob("process-*.rec"))


def has_left():
    return "_dynotune_agent" not in sys.modules


def is_prepared():
    """Tell whether the agent has prepared a recording that it has not ended yet; torch itself would not tell
    of a session that records all threads."""
    return hasattr(torch.autograd.profiler.record_function.__exit__, "__wrapped__")


IS_TIME = {
    "steps": lambda: recorded(b'"event": "trace"'),
    "frozen": lambda: recorded(b'"event": "window"'),
    "workers": lambda: recorded(b'"event": "window"'),
    "recording": lambda: num_prepared > 2,
    "evaluation": lambda: num_prepared > 2,
    "no step": lambda: recorded(b'"event": "window"'),
}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
workers = 1 if CASE == "workers" else 0
held, before, seen_in_worker, num, num_prepared = None, {}, 0, 0, 0
while not (before and held is None and has_left()) and num < MOST_STEPS:
    for inputs, inside in DataLoader(Samples(), batch_size=4, num_workers=workers):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        num += 1
        num_prepared += is_prepared()
        seen_in_worker = max(seen_in_worker, int(inside.max()) if workers else 0)
        if num == 20:
            if CASE == "frozen":
                gc.freeze()
            before = interpreter_state()
            held = os.open(FOLDER / "held.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)
            _thread.start_new_thread(load, ())
        if held is not None:
            os.utime(held)
        if CASE == "evaluation" and held is not None and IS_TIME[CASE]():
            with torch.no_grad():
                while is_prepared():
                    os.utime(held)
                    model(inputs)
        if held is not None and (
            (CASE == "evaluation" and recorded(b'"event": "given_up"')) or IS_TIME[CASE]()
        ):
            fcntl.flock(held, fcntl.LOCK_SH)  # as a dynotune that lives, and removes the folder later
            held = None
            while CASE == "no step" and not has_left():
                os.sched_yield()
        if held is None and before and has_left():
            break
after = interpreter_state()
names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
print(
    json.dumps(
        {
            "differ": {name: [before.get(name), after.get(name)] for name in names},
            "seen_in_worker": seen_in_worker,
            "profiles": is_prepared() or bool(torch.autograd._profiler_enabled()),
            "ended": num < MOST_STEPS,
        }
    )
)
