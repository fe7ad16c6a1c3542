"""An interpreter that has no torch: all of the agent can be imported in it, and a program runs as ever."""

from pathlib import Path

import dynotune
from dynotune.schema.events import GivenUp, SettingsReadBack, StateRead, Window
from dynotune.schema.facts import Unknown
from dynotune.schema.reasons import Reason

from .planned_tasks import trace_task, window_task

AGENT = Path(dynotune.__file__).parent / "agent"
MODULES = sorted(path.stem for path in AGENT.glob("*.py") if path.stem != "__init__")


def test_every_module_of_the_agent_is_compiled_and_imported_without_a_warning(
    script, tmp_path, run_under_agent
):
    each = "    importlib.import_module('_dynotune_agent.' + name)"
    program = script(f"import importlib\nfor name in {MODULES}:\n{each}\nprint('all')\n")
    env = {"PYTHONWARNINGS": "error", "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")}
    ran = run_under_agent([program], env=env)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "all\n", "")
    assert len(ran.records) == 1


def test_the_steps_of_a_program_without_torch_are_counted_where_it_marks_them(script, run_under_agent):
    program = script("import dynotune\nfor _ in range(30):\n    dynotune.step()\nprint('done')\n")
    ran = run_under_agent([program])
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
    assert ran.stepping.num_steps == 30
    assert ran.stepping.errors == []


def test_tasks_are_answered_or_given_up_with_the_reason_when_a_program_has_no_torch(script, run_under_agent):
    loop = "for _ in range(60):\n    gc.collect()\n    dynotune.step()\n"
    setting = {
        "knob": "host.num_threads",
        "value": 1,
        "site": {"type": "call", "get": "torch.a", "set": "torch.b"},
    }
    orders = [
        window_task(5, 10),
        trace_task(20, 3),
        {"type": "switch-arms", "at_step": 30, "arms": [[setting]], "num_blocks": 1, "stretch_steps": 2},
        {"type": "isolate-loader", "at_step": 40, "num_steps": 3},
        {"type": "check-results", "num_values": 2},
    ]
    ran = run_under_agent(
        [script("import dynotune, gc\n" + loop)], observe=True, tasks=orders, settings=[setting]
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert ran.stepping.errors == []
    (record,) = ran.records
    (window,) = record.all(Window)
    assert window.num_steps == 10
    given_up = {event.kind: (event.code, event.reason) for event in record.all(GivenUp)}
    without = "the program did not import torch"
    assert given_up.pop("isolated") == ("", "the steps draw from no DataLoader of torch")
    assert given_up == dict.fromkeys(["trace", "switched"], (Reason.NO_TORCH, ""))
    (readback,) = record.last(SettingsReadBack).settings
    assert (readback.ok, readback.detail) == (False, without)
    (state,) = record.all(StateRead)
    assert state.failed == {}
    assert state.collections.num == 10
    assert state.live["live.num_threads"] == Unknown(without)
    assert state.live["live.gc_enabled"] is True
    assert state.live["live.profiler_place"] == ""
