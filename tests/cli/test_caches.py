"""What the runs of a comparison find in their compile caches: a program that keeps something there, and
looks."""

import pytest

from .conftest import CALL

KEEPS = """
import os, pathlib
caches = [pathlib.Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")]
print("FOUND", sum(len(list(cache.iterdir())) for cache in caches), os.environ["A"], flush=True)
for cache in caches:
    (cache / f"of-{os.getpid()}").touch()
"""  # noqa: E501


def found(user) -> dict[str, list[int]]:
    """How much each run of an arm found, ascending: an arm finds its own work alone."""
    of_arm: dict[str, list[int]] = {"baseline": [], "candidate": []}
    for output in user.runs.glob("*/*/stdout"):
        words = output.read_text().split()
        at = words.index("FOUND")
        of_arm[words[at + 2]].append(int(words[at + 1]))
    return {arm: sorted(nums) for arm, nums in of_arm.items()}


@pytest.mark.long
@pytest.mark.parametrize(("caches", "each_run_adds"), [("cold", 0), ("warm", 3)])
def test_an_arm_finds_what_its_own_runs_left_or_nothing(user, caches, each_run_adds):
    done = user.trains(KEEPS + CALL, "--caches", caches, "env.A=candidate", "--baseline", "env.A=baseline")
    assert done.returncode == 0, done.stderr
    for nums in found(user).values():
        assert len(nums) >= 2
        assert nums == [each_run_adds * number for number in range(len(nums))]
