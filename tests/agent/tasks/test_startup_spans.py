"""What the agent records of a start: spans of a program's own doings, which the program does not notice."""

from __future__ import annotations

import importlib.machinery
import shutil
import subprocess
from pathlib import Path

import pytest

import dynotune
from dynotune.measure.startup import phases
from dynotune.schema.events import AgentError, CompilerCounted, StartSpan
from dynotune.schema.facts import Unknown

SOURCE = Path(dynotune.__file__).parent

STARTS = """
import decimal, torch, xml.dom.minidom
from torch import nn
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
torch.save(net.state_dict(), "weights.pt")
net.load_state_dict(torch.load("weights.pt"))
print("SAME", torch.load is torch.serialization.load, nn.Module.load_state_dict.__qualname__)
try:
    import broken
except ImportError:
    import traceback
    print("TRACE", [frame.name for frame in traceback.extract_tb(__import__("sys").exc_info()[2])])
import warns
for _ in range(40):
    net(torch.ones(8, 64))
"""
WARNS = "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\n"


def test_the_phases_of_a_start_sum_to_it_and_the_program_sees_nothing(tmp_path, script, run_under_agent):
    (tmp_path / "broken.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "warns.py").write_text(WARNS)
    path = script(STARTS)
    ran = run_under_agent(["-W", "always", path], startup=True, sync_steps=True)
    plain = run_under_agent(["-W", "always", path], env={"DYNOTUNE_RUN": ""})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, plain.stdout, plain.stderr)
    assert "TRACE ['<module>', '<module>']" in ran.stdout  # no frame of ours
    assert "program.py:13: DeprecationWarning" in ran.stderr
    (record,) = [record for record in ran.records if record.steps]
    assert not record.all(AgentError)
    end_s = record.steps[0].end_s
    found = phases.phases(record, ran.launched_s, end_s)
    known = [value for value in found.values() if not isinstance(value, Unknown)]
    assert sum(known) == pytest.approx(end_s - ran.launched_s)
    for phase in ("interpreter", "agent", "torch_import", "weights", "imports_before_torch", "first_step"):
        assert found[phase] > 0, phase
    assert found["compile"] == 0.0  # looked for, and there was none
    assert "torch" in dict(phases.imports(record))


COMPILES = """
import torch
def backend(graph, inputs):
    return graph.forward
net = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), backend=backend)
for _ in range(40):
    net(torch.ones(4, 8))
from torch._dynamo.utils import counters
print("GRAPHS", counters["stats"]["unique_graphs"], dict(counters["graph_break"]))
"""


@pytest.mark.long
def test_compilations_are_spans_and_break_no_graph(script, fork_under_agent):
    ran = fork_under_agent([script(COMPILES)], compiler=False, startup=True)
    assert "GRAPHS 1 {}" in ran.stdout, ran.stderr
    (record,) = [record for record in ran.records if record.steps]
    compiled = [span for span in record.all(StartSpan) if span.phase == "compile"]
    assert len(compiled) == 1
    assert compiled[0].end_s > compiled[0].begin_s
    assert record.all(CompilerCounted)


MOVES = """
import torch
class Moves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, batch):
        self.inner.to(torch.float32)
        return self.inner(batch)
net = torch.compile(Moves(), backend="eager", fullgraph=True)
for _ in range(40):
    net(torch.ones(4, 8))
print("DONE")
"""


@pytest.mark.long
def test_a_model_that_is_moved_inside_of_a_graph_breaks_none(script, fork_under_agent):
    plain = fork_under_agent([script(MOVES)], compiler=False, env={"DYNOTUNE_RUN": ""})
    if "DONE" not in plain.stdout:
        pytest.skip("this version of torch compiles no model that is moved")
    ran = fork_under_agent([script(MOVES)], compiler=False, startup=True)
    assert "DONE" in ran.stdout, ran.stderr


COVERS_LATER = """
import sys, types
package = types.ModuleType("agent")
package.__path__ = [sys.argv[1]]
sys.modules["agent"] = package
from agent.tasks.startup_spans import StartupSpans
events, waiting = [], {}
class Hooks:
    def call(self, name, callback): waiting[name] = callback
starting = StartupSpans(0.0, events.append, lambda where, error: None)
starting.install(Hooks())
for callback in waiting.values():
    callback(types.ModuleType("of another version"))
told = [event for event in events if event["event"] == "starting"]
print("TOLD", sorted(told[-1]["unknown"]))
"""


def test_startup_spans_say_which_spans_cannot_be_covered_when_torch_is_loaded_already(target_python):
    done = subprocess.run(
        [target_python, "-c", COVERS_LATER, str(SOURCE / "agent")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["TOLD ['compile', 'weights']"], done.stderr


WARNS_INSIDE = """
import sys, types, warnings
package = types.ModuleType("agent")
package.__path__ = [sys.argv[1]]
sys.modules["agent"] = package
sys.modules["torch"] = types.SimpleNamespace(compiler=types.SimpleNamespace(is_compiling=lambda: False))
from agent.tasks.startup_spans import StartupSpans
starting = StartupSpans(0.0, lambda event: None, lambda where, error: None)
class Library:
    def load(self):
        warnings.warn("old", FutureWarning, stacklevel=2)
starting._cover(Library, "load", "weights")
Library().load()  # here
"""


def test_a_warning_about_the_callers_line_names_it_through_a_cover(tmp_path, target_python):
    program = tmp_path / "program.py"
    program.write_text(WARNS_INSIDE)
    words = [target_python, str(program), str(SOURCE / "agent")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    line = WARNS_INSIDE.splitlines().index("Library().load()  # here") + 1
    assert done.stderr.startswith(f"{program}:{line}: FutureWarning: old"), done.stderr


def test_a_program_that_is_not_asked_for_its_start_records_no_spans(script, fork_under_agent):
    ran = fork_under_agent(
        [script("import torch\nnet = torch.nn.Linear(8, 8)\nfor _ in range(20): net(torch.ones(1, 8))")]
    )
    assert all(not record.all(StartSpan) for record in ran.records)


BUILDS = """
import sys, types, weakref
package = types.ModuleType("agent")
package.__path__ = [sys.argv[1]]
sys.modules["agent"] = package
from agent.tasks.startup_spans import StartupSpans
import time
events, errors = [], []
starting = StartupSpans(0.0, events.append, lambda where, error: errors.append((where, error)))
class Module:
    def __init__(self): pass
original = Module.__init__
class Inner(Module):
    def __init__(self):
        super().__init__()
        time.sleep(0.005)
class Net(Module):
    def __init__(self, fails=False):
        super().__init__()
        self.inner = [Inner() for _ in range(3)]
        if fails:
            raise ValueError("no")
class Late(Module):
    def __init__(self):
        inner = Inner()
        super().__init__()
class Of(Net):
    def __init__(self):
        super().__init__()
        time.sleep(0.005)
starting._cover_construction(Module)
Net()
Of()
try:
    Net(fails=True)
except ValueError as error:
    frame = error.__traceback__.tb_next.tb_frame
    half_made = weakref.ref(frame.f_locals["self"])
    del frame
print("KEPT", half_made() is not None)
Net()
spans = [event for event in events if event["phase"] == "model_build"]
print("LONG", [span["end_s"] - span["begin_s"] >= 0.015 for span in spans], errors)
starting._compilation_begins()
print("UNCOVERED", Module.__init__ is original)
"""


def _newer_python(target: str) -> str | None:
    """One that works: a name on PATH may be a shim of a version that is not switched on."""
    newer = "import sys; sys.exit(sys.version_info < (3, 12))"
    for name in (target, "python3.12", "python3.13", "python3.14"):
        found = shutil.which(name)
        if found is not None and subprocess.run([found, "-c", newer], capture_output=True).returncode == 0:
            return found
    return None


def test_a_model_is_built_from_its_outermost_constructors_first_word_to_its_return(tmp_path, target_python):
    python = _newer_python(target_python)
    if python is None:
        pytest.skip("no Python from 3.12 on is here: older ones tell no returns")
    done = subprocess.run(
        [python, "-c", BUILDS, str(SOURCE / "agent")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    # One that raised never returned; the one after it is seen again.
    assert done.stdout.splitlines() == ["KEPT False", "LONG [True, True, True] []", "UNCOVERED True"], (
        done.stderr
    )


IMPORTS = """
import outer
import traceback
try:
    import broken
except ImportError:
    print("TRACE", [frame.name for frame in traceback.extract_tb(__import__("sys").exc_info()[2])])
"""


def test_an_account_has_imports_by_package_and_libraries_and_the_program_sees_nothing(
    tmp_path, script, run_under_agent
):
    for package, inside in (("outer", "inner.part"), ("inner", "csv"), ("inner/part", "ctypes, decimal")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"import {inside}\nfor _ in range(10**6): pass\n")
    (tmp_path / f"broken{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_text("no library")
    path = script(IMPORTS)
    ran = run_under_agent([path], account=True)
    plain = run_under_agent([path], env={"DYNOTUNE_RUN": ""})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, plain.stdout, plain.stderr)
    assert "TRACE ['<module>']" in ran.stdout
    (record,) = ran.records
    assert not record.all(AgentError)
    packages = {}
    for span in record.all(StartSpan):
        packages.setdefault(span.name.partition(".")[0], []).append(span)
    (outer,), (inner,) = packages["outer"], packages["inner"]  # not its parts
    assert outer.begin_s < inner.begin_s < inner.end_s < outer.end_s
