"""A small BERT, trained by Transformers' Trainer."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(0, 1000, (64,), generator=g)
        for _ in range(60):
            ids = ids.sort().values.flip(0)
        return {"input_ids": ids, "labels": i % 2}


def main():
    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    model = BertForSequenceClassification(config)
    training = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=16,
        max_steps=400,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
    )
    Trainer(model=model, args=training, train_dataset=Data()).train()


if __name__ == "__main__":
    main()
