"""`dynotune.api`: the subcommands as functions, and the page about them."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dynotune import api
from dynotune.api import notebook
from dynotune.schema import document
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import Study

from .fakes import of_run
from .report.studies import diagnosis
from .report.summaries import summary

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "python.md"
HEAVY = ("torch", "numpy", "scipy", "rich", "psutil", "pynvml", "typer", "IPython")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


def comparison(tmp_path: Path, **changes) -> Comparison:
    run = RunSpec(command=["python", "<b>train</b>.py"], cwd=tmp_path, base=tmp_path, settings=[])
    return msgspec.structs.replace(
        Comparison(id="x", run=run, candidate_settings=[Setting("env.A", "1")]), **changes
    )


def test_the_page_shows_what_happens(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"beside this `train.py`:\n\n```python\n(.*?)```", text, re.DOTALL)
    # Its last line is in the loop, and so is this one: others have the cores while the examples run.
    (tmp_path / "train.py").write_text(program + "    __import__('time').sleep(0.01)\n")
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    report: list[str] = []
    assert doctest.DocTestRunner().run(test, out=report.append).failed == 0, "".join(report)
    assert len(test.examples) > 12


@pytest.mark.parametrize("name", ["dynotune", "dynotune.api"])
def test_importing_it_brings_nothing_heavy(name):
    code = f"import sys, {name}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_document_is_still_its_schemas_struct_and_reads_back(tmp_path):
    for found in (diagnosis(), summary(), comparison(tmp_path)):
        shown = api.shown(found)
        assert isinstance(shown, type(found)) and shown is api.shown(shown)
        api.save(shown, tmp_path / "kept.json")
        assert document.encode(shown) == document.encode(found)
        assert api.shown(document.read(tmp_path / "kept.json", type(found))) == api.load(
            tmp_path / "kept.json"
        )


def test_a_document_prints_as_its_report_and_shows_it_in_a_notebook_with_texts_escaped(tmp_path):
    shown = api.shown(comparison(tmp_path, reason="\x1b[2J it is"))
    assert "env.A=1" in str(shown) and "\x1b" not in str(shown)
    html = shown._repr_html_()
    assert html.startswith("<pre") and "env.A=1" in html
    assert "&lt;b&gt;train" in html and "<b>" not in html and "\x1b" not in html


def test_in_a_notebooks_kernel_nothing_is_displayed_but_what_a_cell_returns(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = api.shown(comparison(tmp_path))
    with api._watched({}) as watcher:
        watcher.running("a spinner")
        watcher.say("a line")
    assert shown._repr_html_() and str(shown)
    said = capsys.readouterr()
    assert said.out == "" and "a line" in said.err and "spinner" not in said.err


def test_secrets_are_not_shown(tmp_path):
    secret = "hf_" + "abcdefghijklmnopqrstuvwxyz123456"
    run = RunSpec(command=["python", "x.py", f"--token={secret}"], cwd=tmp_path, base=tmp_path)
    shown = api.shown(comparison(tmp_path, run=run))
    assert secret not in str(shown) + shown._repr_html_()


def test_settings_may_be_a_mapping_texts_or_one_text():
    expected = [Setting("loader.num_workers", 4)]
    assert api._settings({"loader.num_workers": 4}) == expected
    assert api._settings(["loader.num_workers=4"]) == api._settings("loader.num_workers=4") == expected
    assert api._settings({"loader.pin_memory": True, "env.A": None}) == [
        Setting("loader.pin_memory", True),
        Setting("env.A", "@unset"),
    ]


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (["python x.py", {"env.A": "1"}], {"baseline": {"env.A": "1"}}, "Both arms are the same"),
        (["python x.py", {}], {}, "Both arms are the same"),
        (["", {"env.A": "1"}], {}, "The command is empty|no command"),
        (["python x.py", ["env.A=1", "env.A=2"]], {}, "both set env.A"),
        (["python x.py", {"env.A": 1}], {"steps": 0}, "0 is not a number of steps"),
        (["python x.py", {"env.A": 1}], {"warmup": "many"}, "Expected `int"),
        (["python x.py", {"env.A": 1}], {"objective": "beauty"}, "Invalid enum value 'beauty'"),
        (["python x.py", {"env.A": 1}], {"in_process": "perhaps"}, "Invalid enum value 'perhaps'"),
        (["python x.py", {"env.A": 1}], {"pairs": "all"}, "Expected `int"),
        (["pyton x.py", {"env.A": 1}], {}, "Command not found: pyton"),
    ],
)
def test_compare_refuses_arguments_that_do_not_fit_before_anything_runs(tmp_path, arguments, options, words):
    with pytest.raises(UsageError, match=words) as refused:
        api.compare(*arguments, **options)
    assert refused.value.hint
    assert not list((tmp_path / "state").glob("*/runs/*"))


def test_an_option_that_does_not_exist_is_named():
    with pytest.raises(TypeError, match="no option budget_seconds"):
        api.diagnose("python x.py", budget_seconds=3)  # type: ignore[call-arg]


def test_records_that_cannot_be_made_or_read_are_told(tmp_path):
    with pytest.raises(CannotRunHere, match="Cannot make a run folder"):
        api.diagnose("python x.py", run_dir="/proc/x")
    with pytest.raises(UsageError, match="There is no"):
        api.load(tmp_path / "nothing.json")
    (tmp_path / "cut.json").write_text('{"schema": "dynotune.comparison/2", "id"')
    with pytest.raises(UsageError, match="not a JSON document"):
        api.load(tmp_path / "cut.json")
    (tmp_path / "other.json").write_text('{"schema": "dynotune.comparison/2", "id": 3}')
    with pytest.raises(RecordError, match="not a valid"):
        api.load(tmp_path / "other.json")
    with pytest.raises(UsageError, match="predicted from two"):
        api.memory("python x.py", batches={"arg.batch": [8]})


def test_the_command_inherits_what_this_process_has_set_and_no_more_than_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SET_IN_THE_KERNEL", "1")
    assert api._spec("python x.py", {}).env["SET_IN_THE_KERNEL"] == "1"
    given = api._spec(
        "python x.py", {"env": {"PATH": os.environ["PATH"]}, "cwd": tmp_path, "warmup": 3, "nice": 5}
    )
    assert set(given.env) == {"PATH"}
    assert (given.cwd, given.warmup_steps, given.nice) == (tmp_path, 3, 5)


def test_an_interrupted_comparison_says_how_it_goes_on(tmp_path, monkeypatch):
    from dynotune.measure.bench import protocol

    def interrupted(request, watcher):
        raise protocol.Interrupted(tmp_path / "kept")

    monkeypatch.setattr(protocol, "compare", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        api.compare("python x.py", {"env.A": 1}, progress=False)
    assert stopped.value.__notes__ == [
        f"What was measured is kept: dynotune compare --resume {tmp_path / 'kept'}"
    ]


@pytest.mark.parametrize(
    "batches",
    [
        {"loader.num_workers": [1, 2]},
        {"arg.batch": ["a", "b"]},
        {"arg.a": [1], "arg.b": [2]},
        {"arg.a": [0, 1]},
    ],
)
def test_batches_that_are_none_are_refused_before_anything_runs(batches):
    with pytest.raises(UsageError, match="predicted from two"):
        api.memory("python train.py", batches=batches)


@pytest.mark.parametrize(
    "asked", [{"nice": 99}, {"seed": -4}, {"precision": 0.0}, {"budget_s": -5.0}, {"timeout_s": -1.0}]
)
def test_numbers_that_the_command_line_refuses_are_refused(asked):
    with pytest.raises(UsageError, match=f"{next(iter(asked))}=.* is not from"):
        api.compare("true", "env.A=1", **asked)


def test_a_recipe_that_could_not_be_written_is_refused_before_the_search(tmp_path):
    with pytest.raises(UsageError, match="Cannot write"):
        api.tune("true", output=tmp_path / "nowhere" / "x.toml")
    with pytest.raises(UsageError, match="lets nothing run"):
        api.tune("true", budget_s=-1.0)


def test_a_function_of_a_module_is_compared_as_a_command_whose_calls_are_steps(tmp_path):
    (tmp_path / "training.py").write_text(
        "import time, torch\nnet = torch.nn.Linear(64, 64)\n"
        "def one_step():\n    net(torch.rand(32, 64)).sum().backward()\n    time.sleep(0.01)\n"
    )
    asked = (
        "import training\nfrom dynotune import api\nfound = api.compare(training.one_step, "
        "'host.num_threads=1', "
    )
    asked += (
        "steps=20, pairs=2, in_process='only', budget_s=60, progress=False)\nprint(found.run.step_function)"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "training:one_step\n", done.stderr


def test_a_function_that_no_process_can_import_is_refused():
    def inside():
        pass

    for function in (inside, lambda: None):
        with pytest.raises(UsageError, match="cannot be imported"):
            api.compare(function, {"host.num_threads": 1})


class Shell:
    """The shell that IPython gives to an extension."""

    def register_magic_function(self, function, kind, name):
        self.registered = kind, name
        self.run = function


def test_a_cell_is_asked_about_as_a_program_beside_the_notebook(tmp_path, capsys):
    shell = Shell()
    api.load_ipython_extension(shell)
    assert shell.registered == ("cell", "dynotune")
    (tmp_path / "helper.py").write_text("GREETING = 'from a module beside it'\n")
    shell.run("run", "import helper\nprint(helper.GREETING)\n")
    assert "from a module beside it" in capsys.readouterr().out


def test_a_cells_subcommand_is_interrupted_once_and_may_print_what_is_no_text(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stand_in = "import os\nos.write(1, b'\\xff own session: %d' % (os.getsid(0) == os.getpid()))\n"
    (tmp_path / "dynotune").mkdir()
    (tmp_path / "dynotune" / "__init__.py").touch()
    (tmp_path / "dynotune" / "__main__.py").write_text(stand_in)
    notebook.run_cell("diagnose", "pass")
    assert capsys.readouterr().out == "\ufffd own session: 1"


def test_notebook_cell_shows_output_of_a_subcommand_that_ended_at_once(tmp_path, capsys, monkeypatch):
    class Ended(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.wait()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebook.subprocess, "Popen", Ended)
    notebook.run_cell("no-such-subcommand", "pass")
    assert "no-such-subcommand" in capsys.readouterr().out


def test_a_line_of_a_cell_that_cannot_be_split_is_refused():
    with pytest.raises(UsageError, match="no line of options"):
        notebook.run_cell("diagnose '", "pass")


@pytest.mark.parametrize("options", [{}, {"exact": True, "budget_s": 60.0}])
def test_tune_tries_what_rounds_for_three_minutes_when_nothing_else_is_asked(monkeypatch, tmp_path, options):
    asked = []

    def tune(request, budget_s, watcher):
        asked.append((request.exact, budget_s))
        return tmp_path, of_run(Study, id="s", budget_s=budget_s)

    monkeypatch.setattr("dynotune.search.tune.tune", tune)
    api.tune([sys.executable, "x.py"], progress=False, **options)
    assert asked == [(options.get("exact", False), options.get("budget_s", 180.0))]


def test_account_runs_a_command_to_its_end_also_when_the_command_fails(tmp_path):
    (tmp_path / "fails.py").write_text("print('kept'); raise SystemExit(3)")
    found = api.account([sys.executable, "fails.py"], sandbox=False, progress=False)
    assert (found.exit_code, found.num_steps) == (3, 0)
    assert sum(row.took_s for row in found.rows) == pytest.approx(found.wall_s)
    assert "whole run" in repr(found)
