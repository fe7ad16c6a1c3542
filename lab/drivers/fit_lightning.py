"""Fits Lightning's own BoringModel: python fit_lightning.py '{"max_epochs": 2}' (arguments of its
Trainer)."""

import json
import sys

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from told import end, tell

if __name__ == "__main__":
    trainer = lightning.Trainer(
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        **json.loads(sys.argv[1]),
    )  # fmt: skip
    trainer.fit(BoringModel())
    # Its loaders give one sample a batch.
    tell(
        trainer.global_step,
        trainer.fit_loop.total_batch_idx + 1,
        trainer.train_dataloader,
        trainer.optimizers[0],
    )
    end()
