"""Hugging Face's Trainer with a tiny random model, accumulation by 2 and an evaluation every 5 steps."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
model = BertForSequenceClassification(config)
rows = [{"input_ids": torch.randint(0, 50, (6,)), "labels": index % 2} for index in range(120)]
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        gradient_accumulation_steps=2,
        eval_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=rows,
    eval_dataset=rows[:32],
)
trainer.train()
print("TRUTH", trainer.state.global_step, 240)
