"""Train a BERT or a GPT of Transformers, from its configuration, on sequences of which 45% of a batch is
padding.

python train_texts.py bert|gpt [--how written|sampler|packed] [--seed 0] [--seconds 6 | --steps N] [--device
cuda] python train_texts.py bert|gpt --turns 3 [--seconds 3]        samples/s of all three ways, by turns in
one process python train_texts.py bert|gpt --check varlen|mixing          what check_packing says

It ends with a line of JSON: samples/s after the first steps, and of each seed the mean loss of the last
twentieth.
"""

import argparse
import json
import statistics
import time

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
)

from dynotune.runtime.data import LengthBatchSampler, check_packing, pack
from dynotune.runtime.errors import NumericsError

VOCABULARY, MASK, BATCH = 2000, 1, 128
HOWS = ("written", "sampler", "packed")


class Texts(Dataset):
    """Sequences of a random chain: each token allows eight to follow. Lengths are skewed as those of
    texts."""

    def __init__(self, model, number, longest, seed):
        generator = torch.Generator().manual_seed(seed)
        self.model = model
        spread = torch.empty(number).log_normal_(0.0, 0.42, generator=generator)
        self.lengths = (spread * longest / 2.8).clamp(16, longest).long().tolist()
        follow = torch.randint(2, VOCABULARY, (VOCABULARY, 8), generator=torch.Generator().manual_seed(0))
        at, columns = torch.randint(2, VOCABULARY, (number,), generator=generator), []
        for _ in range(longest):
            columns.append(at)
            at = follow[at, torch.randint(0, 8, (number,), generator=generator)]
        self.tokens = torch.stack(columns, 1)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        tokens = self.tokens[index, : self.lengths[index]]
        if self.model == "gpt":
            return {"input_ids": tokens, "labels": tokens.clone()}
        # The mask is the sample's own, so that padded and packed see the same.
        hidden = torch.rand(len(tokens), generator=torch.Generator().manual_seed(index)) < 0.15
        hidden[0] = False
        return {"input_ids": tokens.masked_fill(hidden, MASK), "labels": tokens.masked_fill(~hidden, -100)}


def padded(samples):
    """Pad to the longest, with a mask."""
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones(len(each["input_ids"]), dtype=torch.long) for each in samples], batch_first=True)
    labels = pad([each["labels"] for each in samples], batch_first=True, padding_value=-100)
    return {
        "input_ids": pad([each["input_ids"] for each in samples], True),
        "attention_mask": mask,
        "labels": labels,
    }


def packed(samples):
    return pack(samples, for_transformers=True)


def varlen(module, query, key, value, mask, cu_seq_lens_q=None, max_length_q=None, scaling=None, **_):
    """Keep packed sequences apart: on a GPU by torch's attention for sequences of many lengths, else one by
    one."""
    causal = getattr(module, "is_causal", False) or isinstance(module, MODELS["gpt"][2])
    attend = torch.nn.functional.scaled_dot_product_attention
    if cu_seq_lens_q is None:
        return attend(query, key, value, mask, is_causal=causal and mask is None).transpose(1, 2), None
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        each = [one[0].transpose(0, 1).contiguous() for one in (query, key, value)]
        longest = int(max_length_q)
        options = (
            {"window_size": (-1, 0) if causal else (-1, -1)}
            if "window_size" in varlen_attn.__code__.co_varnames
            else {"is_causal": causal}
        )
        return varlen_attn(*each, cu_seq_lens_q, cu_seq_lens_q, longest, longest, **options)[None], None
    cuts = cu_seq_lens_q.diff().tolist()
    parts = zip(*(one.split(cuts, dim=2) for one in (query, key, value)), strict=True)
    return torch.cat([attend(*part, is_causal=causal) for part in parts], dim=2).transpose(1, 2), None


def mixing(module, query, key, value, mask, **_):
    """Attend to all that stands before, of whichever sequence: the mistake that check_packing is for."""
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, is_causal=True).transpose(1, 2), None


for name, function in {"varlen": varlen, "mixing": mixing}.items():
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, lambda *args, **options: None)


def small(device):
    return {"wide": 768, "deep": 12, "heads": 12} if device == "cuda" else {"wide": 64, "deep": 2, "heads": 2}


def bert(size, longest):
    sizes = {
        "hidden_size": size["wide"],
        "intermediate_size": 4 * size["wide"],
        "num_hidden_layers": size["deep"],
    }
    return BertConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=size["heads"],
        max_position_embeddings=longest,
        pad_token_id=0,
        **sizes,
    )


def gpt(size, longest):
    return GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=longest,
        n_embd=size["wide"],
        n_layer=size["deep"],
        n_head=size["heads"],
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )


def _attention_of_gpt():
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    return GPT2Attention


MODELS = {"bert": (bert, BertForMaskedLM, ()), "gpt": (gpt, GPT2LMHeadModel, _attention_of_gpt())}


def build(given, attention):
    longest = 512 if given.device == "cuda" else 128
    config = MODELS[given.model][0](small(given.device), longest)
    config._attn_implementation = attention
    return MODELS[given.model][1](config), longest


def check(given):
    """Print what check_packing makes of an attention."""
    model, longest = build(given, given.check)
    samples = Texts(given.model, 4, longest, 0)
    dtype = torch.bfloat16 if given.device == "cuda" and given.check == "varlen" else torch.float32
    try:
        difference = check_packing(model.to(given.device, dtype), [samples[at] for at in range(4)])
        answer = f"accepted, {difference:.1e} apart"
    except NumericsError as error:
        answer = f"refused: {str(error).splitlines()[0]}"
    print(json.dumps({"answer": answer}))


class Training:
    """A model, its optimizer and its loader; steps go on from where they stopped."""

    def __init__(self, given, how, seed):
        torch.manual_seed(seed)
        batch_size = BATCH if given.device == "cuda" else 8
        self.device, self.how = given.device, how
        model, longest = build(given, "varlen" if how == "packed" else "sdpa")
        samples = Texts(given.model, 60000 if given.device == "cuda" else 4000, longest, seed + 1)
        collate = packed if how == "packed" else padded
        if how == "sampler":
            by_length = LengthBatchSampler(samples.lengths, batch_size=batch_size, seed=seed)
            loader = DataLoader(samples, batch_sampler=by_length, collate_fn=collate, num_workers=2)
        else:
            order = torch.Generator().manual_seed(seed)
            options = {"num_workers": 2, "generator": order, "drop_last": True}
            loader = DataLoader(samples, batch_size, shuffle=True, collate_fn=collate, **options)
        self.model = model.to(given.device).train()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        self.losses, self.batches = [], self.endless(loader)

    @staticmethod
    def endless(loader):
        while True:
            yield from loader

    def step(self):
        """Train on the next batch; return how many samples it has."""
        inputs = {
            key: each.to(self.device) if torch.is_tensor(each) else each
            for key, each in next(self.batches).items()
        }
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.model(**inputs).loss
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.detach())
        return len(inputs["cu_seq_lens_q"]) - 1 if self.how == "packed" else len(inputs["input_ids"])

    def speed(self, seconds, steps=None):
        """Return samples/s, after ten steps, of so many seconds, or of so many steps in all."""
        for _ in range(10):
            self.step()
        self.losses[-1].item()
        begin, num = time.monotonic(), 0
        while len(self.losses) < steps if steps else time.monotonic() - begin < seconds:
            num += self.step()
        self.losses[-1].item()
        return num / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--how", choices=HOWS, default="written")
    parser.add_argument("--check", choices=("varlen", "mixing"))
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="the first, if there are several")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    if given.check:
        check(given)
        return
    if given.turns:
        ways = {how: Training(given, how, given.seed) for how in HOWS}
        turns = [{how: way.speed(given.seconds) for how, way in ways.items()} for _ in range(given.turns)]
        print(json.dumps({"samples_per_s": {how: [turn[how] for turn in turns] for how in HOWS}}))
        return
    last_losses, samples_per_s = [], 0.0
    for seed in range(given.seed, given.seed + given.seeds):
        training = Training(given, given.how, seed)
        samples_per_s = training.speed(given.seconds, given.steps)
        last = training.losses[-max(1, len(training.losses) // 20) :]
        last_losses.append(statistics.mean(map(float, last)))
    print(json.dumps({"samples_per_s": samples_per_s, "last_losses": last_losses}))


if __name__ == "__main__":
    main()
