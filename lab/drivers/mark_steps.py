"""Neither module nor optimizer: the program marks its steps. In an environment without dynotune, too."""

import torch
from told import tell
from torch.utils.data import DataLoader, TensorDataset

import dynotune

weight = torch.zeros(8)
steps = samples = 0
loader = DataLoader(TensorDataset(torch.randn(120, 8)), batch_size=4)
for (x,) in loader:
    weight += x.mean(0)
    dynotune.step()
    steps, samples = steps + 1, samples + len(x)
assert not hasattr(dynotune, "__file__"), "this environment was to have no dynotune"
tell(steps, samples, loader)
