"""What importing costs and brings along, and that a program that uses the parts ends by itself."""

import subprocess
import sys

import dynotune.runtime

PROGRAM = """
import sys
import dynotune.runtime
ours = sorted(name for name in sys.modules if name.startswith("dynotune"))
assert ours == ["dynotune", "dynotune.runtime", "dynotune.runtime.errors"], ours
assert "torch" not in sys.modules
from dynotune.runtime import BufferPool, Prefetcher, Stager
import torch
others = [name for name in sys.modules if name.startswith("dynotune.") and not name.startswith("dynotune.runtime")]
assert not others, others
from torch.utils.data import DataLoader
stager, pool = Stager(64, device="cpu"), BufferPool("cpu", 64)
lease = stager.lend(bytes(32), pool)
kept = iter(Prefetcher(DataLoader(range(100), batch_size=4, num_workers=1), "cpu"))
print(next(kept).tolist())
"""  # noqa: E501

ALONE = """
import importlib, pkgutil, sys
sys.modules |= dict.fromkeys(
    ("elftools", "jinja2", "msgspec", "platformdirs", "psutil", "pynvml", "rich", "scipy", "typer")
)
import dynotune.runtime
names = [module.name for module in pkgutil.walk_packages(dynotune.runtime.__path__, "dynotune.runtime.")]
for name in names:
    # Kernels in Triton are imported where Triton is.
    if not name.endswith("_kernels"):
        importlib.import_module(name)
print(len(names))
"""


def test_importing_is_light_and_a_program_that_closes_nothing_ends():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[0, 1, 2, 3]\n", "")


def test_a_name_that_does_not_exist_is_an_attribute_error():
    assert not hasattr(dynotune.runtime, "Detektor")
    assert set(dynotune.runtime.__all__) <= set(dir(dynotune.runtime))


def test_each_module_is_imported_when_the_commands_dependencies_are_absent():
    """As after `pip install --no-deps`."""
    ran = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) > 30
