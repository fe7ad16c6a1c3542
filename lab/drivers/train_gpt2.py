"""Hugging Face's Trainer on a random GPT-2: python train_gpt2.py LAYERS WIDTH TOKENS '{"max_steps": 400}'."""

import json
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

if __name__ == "__main__":
    layers, width, tokens = map(int, sys.argv[1:4])
    texts = torch.randint(50_000, (4096, tokens), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": text, "labels": text} for text in texts]
    config = GPT2Config(n_positions=tokens, n_embd=width, n_layer=layers, n_head=width // 64)
    arguments = TrainingArguments("trained", report_to=[], save_strategy="no", **json.loads(sys.argv[4]))
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows).train()
