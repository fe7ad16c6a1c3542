"""How the agent gets into a process, and how little of it the program sees."""

import ast
import os
import subprocess
from pathlib import Path

import pytest

import dynotune

AGENT = Path(dynotune.__file__).parent / "agent"
FILES = sorted(AGENT.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_is_written_in_the_python_of_3_9(file):
    ast.parse(file.read_text(), feature_version=(3, 9))


def test_imports_the_standard_library_alone(script, run_under_agent, target_python):
    program = script(
        "import sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules if not "
        "name.startswith('__')}))\n"
    )
    with_agent = set(run_under_agent(["-S", program]).stdout.split())
    ran = run_under_agent([program])
    loaded = set(ran.stdout.split()) - with_agent
    ours = {"_dynotune_agent", "sitecustomize", "usercustomize"}
    site_packages = {"_distutils_hack", "distutils-precedence", "_virtualenv"} | {
        name for name in loaded if name.startswith(("__editable__", "_editable"))
    }
    assert loaded - ours - site_packages - _standard_library(target_python) == set()
    assert "torch" not in loaded
    assert "_dynotune_agent" in loaded


def _standard_library(python: str) -> set[str]:
    """Return the names of its modules. Versions of Python differ in them; 3.9 has no list of them."""
    code = """
import os, sys, sysconfig
folder = sysconfig.get_path("stdlib")
files = os.listdir(folder) + os.listdir(os.path.join(folder, "lib-dynload"))
print(*sys.builtin_module_names, *(name.partition(".")[0] for name in files))
"""
    return set(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )


def test_agent_leaves_pickles_as_they_are_when_an_object_has_no_module(script, run_under_agent):
    """Keys of compile caches hold such pickles: pickle looks for the object in all modules, in their
    order."""
    program = script(
        "import sys\nprint([name for name in sys.modules if 'multiproc' in name or 'mp_' in name])\n"
    )
    assert run_under_agent([program]).stdout == "[]\n"


def test_no_module_of_ours_shadows_one_of_the_users(script, run_under_agent):
    script("VALUE = 'mine'\n", "steps.py")
    program = script("import steps, sys\nprint(steps.VALUE, [p for p in sys.path if 'bootstrap' in p])\n")
    assert run_under_agent([program]).stdout.strip() == "mine []"


def test_a_module_of_the_users_named_as_one_of_the_librarys_is_found_as_without_us(script, run_under_agent):
    """The agent has imported the library's by then, and goes on with it."""
    for name in ("json", "random", "resource"):
        script("VALUE = 'mine'\n", f"{name}.py")
    program = script(
        "import json, random, resource, threading\nprint(json.VALUE, random.VALUE, resource.VALUE)\n"
    )
    ran = run_under_agent([program])
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "mine mine mine\n", "")
    assert len(ran.records) == 1


def test_a_sitecustomize_of_the_users_still_runs(script, tmp_path, run_under_agent):
    script("print('hello from mine')\nVALUE = 7\n", "sitecustomize.py")
    program = script("import sitecustomize\nprint(sitecustomize.VALUE, sitecustomize.__file__)\n")
    ran = run_under_agent([program], env={"PYTHONPATH": f"{AGENT / 'bootstrap'}:{tmp_path}"})
    assert ran.stdout.split("\n")[:2] == ["hello from mine", f"7 {tmp_path / 'sitecustomize.py'}"]
    assert len(ran.records) == 1


def test_a_sitecustomize_that_fails_fails_as_it_would_without_us(script, tmp_path, run_under_agent):
    script("raise ValueError('broken')\n", "sitecustomize.py")
    program = script("print('on')\n")
    path = {"PYTHONPATH": f"{AGENT / 'bootstrap'}:{tmp_path}"}
    ran = run_under_agent([program], env=path)
    without = run_under_agent([program], env={**path, "PYTHONPATH": str(tmp_path)})
    assert (ran.returncode, ran.stdout, ran.stderr) == (without.returncode, without.stdout, without.stderr)


def test_without_a_sitecustomize_importing_one_fails_as_ever(script, run_under_agent):
    program = script("try:\n    import sitecustomize\nexcept ImportError as error:\n    print(error.name)\n")
    assert run_under_agent([program]).stdout.strip() == "sitecustomize"


@pytest.mark.long
def test_the_import_of_torch_looks_as_it_does_without_us(script, run_under_agent):
    program = script(
        """
import importlib.util, importlib.resources, inspect
before = type(importlib.util.find_spec("torch").loader).__name__
import torch
print(before, type(torch.__loader__).__name__, torch.__spec__.loader is torch.__loader__,
      "exec_module" in vars(torch.__loader__), inspect.getsourcefile(torch) == torch.__file__,
      importlib.resources.files("torch").joinpath("version.py").is_file(), torch.ones(1, 2).shape)
"""
    )
    with_agent, without = run_under_agent([program]), run_under_agent([program], env={"DYNOTUNE_RUN": ""})
    assert with_agent.stdout == without.stdout
    assert "False True" in with_agent.stdout


def test_dynotune_step_exists_where_dynotune_is_not_installed(script, run_under_agent, target_python):
    program = script("import sys, dynotune\ndynotune.step()\nprint(getattr(dynotune, '__file__', None))\n")
    ran = run_under_agent(["-s", program], python=_bare_python(target_python))
    assert (ran.returncode, ran.stdout.strip()) == (0, "None"), ran.stderr
    assert ran.stepping.num_steps == 1


def _bare_python(python: str) -> str:
    """Return the interpreter behind an environment, which has no dynotune."""
    code = "import sys; print(sys.base_prefix, 'bin', 'python%d.%d' % sys.version_info[:2], sep='/')"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_program_that_exits_without_cleaning_up_leaves_its_record(script, fork_under_agent):
    ran = fork_under_agent([script(LOOP + "os._exit(3)\n")])
    assert ran.returncode == 3
    assert ran.stepping.num_steps == 30


def test_a_program_that_is_killed_leaves_its_record(script, fork_under_agent):
    ran = fork_under_agent([script(LOOP + "os.kill(os.getpid(), 9)\n")])
    assert ran.returncode == -9
    assert ran.stepping.num_steps == 30


def test_a_program_that_closes_all_descriptors_leaves_its_record_and_its_files_whole(
    script, tmp_path, fork_under_agent
):
    ran = fork_under_agent(
        [
            script(
                "import os\nos.closerange(3, 4096)\nmine = open('mine', 'wb')\n"
                + LOOP
                + "mine.write(b'x'); mine.close()"
            )
        ]
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stepping.num_steps == 30
    assert (tmp_path / "mine").read_bytes() == b"x"


def test_a_program_that_replaces_its_environment_goes_on(script, fork_under_agent):
    ran = fork_under_agent([script("import os\nos.environ = {'A': '1'}\n" + LOOP)])
    assert ran.returncode == 0, ran.stderr
    assert ran.stepping.num_steps == 30


LOOP = """
import os, torch
net = torch.nn.Linear(4, 4)
for _ in range(30):
    net(torch.ones(1, 4))
"""


def test_a_full_disk_stops_the_record_and_not_the_program(script, tmp_path, fork_under_agent):
    """The file system refuses to reserve blocks, as a full one does."""
    program = script(
        "import os, resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))\n"
        + LOOP.replace("range(30)", "range(9000)")
        + "print('done')"
    )
    ran = fork_under_agent([program])
    assert (ran.returncode, ran.stdout.strip()) == (0, "done"), ran.stderr
    assert 0 < ran.stepping.num_steps < 9000


def test_a_plan_that_cannot_be_read_stops_the_agent_and_not_the_program(script, tmp_path, run_under_agent):
    program = script("print('fine')")
    ran = run_under_agent([program], env={"DYNOTUNE_RUN": str(tmp_path / "nowhere")})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "fine\n", "")


def test_forked_workers_do_not_write_into_their_parents_record(script, fork_under_agent):
    ran = fork_under_agent(
        [
            script(
                """
import os, torch
from torch import nn
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        os.environ["TORCH_FROM_WORKER"] = "1"
        return torch.ones(4)
net = nn.Linear(4, 4)
for x in DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
    net(x)
"""
            )
        ]
    )
    assert ran.returncode == 0, ran.stderr
    assert [process.num_steps for process in ran.processes if process.num_steps] == [32]
    assert len({record.pid for record in ran.records}) == 3


@pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(each, marks=pytest.mark.long) for each in ("spawn", "forkserver"))]
)
def test_loader_workers_of_every_start_method_run(context, script, run_under_agent):
    ran = run_under_agent(
        [
            script(
                f"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    net = nn.Linear(4, 4)
    data = TensorDataset(torch.randn(40, 4))
    for (x,) in DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="{context}"):
        net(x)
"""
            )
        ]
    )
    assert ran.returncode == 0, ran.stderr
    assert (ran.stepping.num_steps, ran.stepping.num_samples) == (20, 40)


def test_says_who_set_an_environment_variable(script, run_under_agent):
    script("import os\ndef prepare():\n    os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'\n", "library.py")
    program = script(
        "import os, library\nlibrary.prepare()\nos.environ.update(OMP_NUM_THREADS='2')\n"
        "os.environ.pop('OMP_NUM_THREADS')\nos.putenv('NCCL_DEBUG', 'INFO')\nos.environ['UNWATCHED'] = '1'\n"
    )
    changes = run_under_agent([program]).processes[0].environment_changes
    seen = [(c.name, c.value, Path(c.file).name, c.line, c.function) for c in changes]
    assert seen == [
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "library.py", 3, "prepare"),
        ("OMP_NUM_THREADS", "2", "program.py", 3, "<module>"),
        ("OMP_NUM_THREADS", None, "program.py", 4, "<module>"),
        ("NCCL_DEBUG", "INFO", "program.py", 5, "<module>"),
    ]


def test_environment_changes_leave_out_a_variable_written_as_it_stands(script, run_under_agent):
    program = script(
        "import os\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = '/tmp/mine'\n"
        "os.environ['TORCHINDUCTOR_CACHE_DIR'] = os.path.abspath(os.environ['TORCHINDUCTOR_CACHE_DIR'])\n"
        "os.environ.pop('TORCHINDUCTOR_CACHE_DIR')\nos.environ.pop('TORCHINDUCTOR_CACHE_DIR', None)\n"
    )
    changes = run_under_agent([program]).processes[0].environment_changes
    assert [(change.value, change.line) for change in changes] == [("/tmp/mine", 2), (None, 4)]


def test_an_optimizer_that_cannot_be_remembered_is_built_all_the_same(script, fork_under_agent):
    program = script(
        """
import torch
class Compared(torch.optim.SGD):
    def __eq__(self, other):
        return self is other
    __hash__ = None
net = torch.nn.Linear(4, 4)
optimizer = Compared(net.parameters(), lr=0.1)
for _ in range(10):
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print("done")
"""
    )
    ran = fork_under_agent([program])
    assert (ran.returncode, ran.stdout.strip()) == (0, "done"), ran.stderr
    assert ran.stepping.num_steps == 10


def test_a_program_whose_exceptions_cannot_be_printed_goes_on(script, fork_under_agent):
    program = script(
        """
import torch
class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no words")
class Shy(torch.optim.SGD):
    def __hash__(self):
        raise Unprintable
net = torch.nn.Linear(4, 4)
Shy(net.parameters(), lr=0.1)
print("done")
"""
    )
    ran = fork_under_agent([program])
    assert (ran.returncode, ran.stdout.strip()) == (0, "done"), ran.stderr
    assert ran.processes[0].errors == ["optimizer: Unprintable: "]


def test_a_module_that_hides_a_standard_one_is_the_programs_alone_when_pythonpath_names_it(
    run_under_agent, tmp_path
):
    """The agent neither runs it nor takes it."""
    (tmp_path / "lib").mkdir()
    for name in ("struct", "random", "json"):
        (tmp_path / "lib" / f"{name}.py").write_text(f"print('{name} runs')\n")
    (tmp_path / "main.py").write_text("import random, os, sys\nprint(random.__file__, sys.path[1])\n")
    path = os.pathsep.join([str(AGENT / "bootstrap"), str(tmp_path / "lib")])
    ran = run_under_agent([tmp_path / "main.py"], env={"PYTHONPATH": path}, observe=True)
    assert ran.stdout == f"random runs\n{tmp_path / 'lib' / 'random.py'} {tmp_path / 'lib'}\n"
    assert ran.records and not ran.stderr
