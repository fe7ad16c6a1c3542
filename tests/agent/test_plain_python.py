"""An interpreter that has no torch: all of the agent can be imported in it, and a program runs as ever."""

from pathlib import Path

import dynotune

AGENT = Path(dynotune.__file__).parent / "agent"
MODULES = sorted(path.stem for path in AGENT.glob("*.py") if path.stem != "__init__")


def test_every_module_of_the_agent_is_compiled_and_imported_without_a_warning(script, tmp_path, run_under_agent):
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
