"""Hugging Face's Trainer on a tiny random GPT-2: python train_transformer.py '{"max_steps": 20}' (its
arguments)."""

import json
import sys

import torch
from told import end, tell
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

TOKENS = 8

if __name__ == "__main__":
    rows = [
        {"input_ids": torch.arange(TOKENS) + start % 4, "labels": torch.arange(TOKENS)} for start in range(64)
    ]
    config = GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        "trained", report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=4, include_num_input_tokens_seen="all", **json.loads(sys.argv[1]),
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows[:16])
    trainer.train()
    # It counts the tokens of all ranks.
    samples = trainer.state.num_input_tokens_seen // TOKENS // arguments.world_size
    tell(trainer.state.global_step, samples, None, trainer.optimizer)
    end()
