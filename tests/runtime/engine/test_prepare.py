"""What the check of folding does to the process's settings, and what an engine compares."""

import pytest
import torch
from torch import nn

from dynotune.runtime import Engine, NumericsError

from ...forked import Forked

CHECK = """
import torch
{}
from torch import nn
from dynotune.runtime import Engine

def state():
    cudnn = torch.backends.cudnn
    return torch.backends.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision

class Sees(nn.Module):
    def forward(self, inputs):
        seen.append(state())
        return inputs

seen, before = [], state()
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Sees()).eval()
with Engine(model, [(1, 3, 8, 8)], compile=False) as engine:
    assert engine.stats().num_folded == 1, engine.stats()
# The unfolded and the folded model are compared by one call of each.
assert sum("tf32" not in precisions[1:] for precisions in seen) >= 2, seen
assert state() == before, (before, state())
"""


@pytest.fixture(scope="module")
def forked():
    """An interpreter that has imported torch, for what each test sets in a process of its own."""
    forked = Forked("torch")
    yield forked
    forked.end()


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this torch has one name for all")
@pytest.mark.parametrize(
    "setting",
    [
        "",
        *(
            pytest.param(f"torch.backends.{each}", marks=pytest.mark.long)
            for each in ("", "cudnn.", "cudnn.conv.")
        ),
    ],
)
def test_folding_is_judged_without_tf32_however_it_was_asked_for_and_puts_it_back(setting, forked, tmp_path):
    # In a process of its own: torch cannot be told to forget such a setting.
    line = f"{setting}fp32_precision = 'tf32'" if setting else ""
    program = tmp_path / "check.py"
    program.write_text(CHECK.format(line))
    done = forked.run([str(program)], cwd=tmp_path, folder=tmp_path)
    assert done.returncode == 0, done.stderr


class Sorting(nn.Module):
    """Its second output jumps where the first moves a little."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 1000)

    def forward(self, inputs):
        scores = self.linear(inputs)
        return scores, scores.argsort(dim=1)


def test_only_the_outputs_that_are_to_be_checked_are_compared():
    torch.manual_seed(0)
    model = Sorting().eval()
    with pytest.raises(NumericsError, match="tolerance"):
        Engine(model, [(8, 16)], dtype=torch.bfloat16)
    with Engine(model, [(8, 16)], dtype=torch.bfloat16, checked=lambda outputs: outputs[0]) as engine:
        scores, order = engine(torch.rand(8, 16))
        assert torch.equal(order, scores.argsort(dim=1))
        assert 0 < engine.stats().buckets[0].error < 0.05
    with pytest.raises(NumericsError, match="tolerance"):
        Engine(model, [(8, 16)], dtype=torch.bfloat16, checked=lambda outputs: outputs[1])
