"""Lightning: a sanity check first, validation after each epoch, the forward inside the optimizer's
closure."""

import logging
import tempfile
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)
        self.num_samples = 0

    def training_step(self, batch, _):
        x, y = batch
        self.num_samples += len(x)
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, _):
        self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = TensorDataset(torch.randn(96, 8), torch.randint(0, 2, (96,)))
module = Module()
trainer = lightning.Trainer(
    max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
    default_root_dir=tempfile.mkdtemp(), enable_model_summary=False,
)  # fmt: skip
trainer.fit(module, DataLoader(data, batch_size=8), DataLoader(data, batch_size=16))
print("TRUTH", trainer.global_step, module.num_samples)
