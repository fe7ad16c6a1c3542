"""Packing: every token once, where each sequence begins, and models that mix sequences are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynotune.runtime import InputError, NumericsError, TooLargeError
from dynotune.runtime.data import check_packing, pack

SEQUENCES = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=20), min_size=1, max_size=8)


@given(SEQUENCES)
def test_every_token_comes_once_and_each_sequence_can_be_cut_out_again(sequences):
    packed = pack(
        [
            {"input_ids": each, "labels": torch.tensor(each), "attention_mask": [1] * len(each)}
            for each in sequences
        ]
    )
    assert set(packed) == {"input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen"}
    starts = packed["cu_seqlens"].tolist()
    assert packed["cu_seqlens"].dtype == torch.int32
    assert (starts[0], starts[-1]) == (0, sum(map(len, sequences)))
    assert packed["max_seqlen"] == max(map(len, sequences))
    for each, begin, end in zip(sequences, starts, starts[1:], strict=False):
        assert packed["input_ids"][0, begin:end].tolist() == each
        assert packed["position_ids"][0, begin:end].tolist() == list(range(len(each)))
        assert packed["labels"][0, begin:end].tolist() == [-100, *each[1:]]


def test_pack_refuses_samples_that_cannot_be_packed():
    with pytest.raises(TooLargeError, match="5 tokens are more than max_tokens=4"):
        pack([{"input_ids": [1, 2]}, {"input_ids": [1, 2, 3]}], max_tokens=4)
    for samples in ([], [{"input_ids": []}], [{"input_ids": [1, 2], "weights": [1]}]):
        with pytest.raises(InputError):
            pack(samples)


class Attention(torch.nn.Module):
    """One layer of attention over embedded tokens and positions."""

    def __init__(self, *, keeps_apart=True, takes_positions=True, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = (
            torch.nn.Embedding(100, 32, dtype=dtype),
            torch.nn.Embedding(64, 32, dtype=dtype),
        )
        self.dropout = torch.nn.Dropout(0.5)
        self.keeps_apart, self.takes_positions = keeps_apart, takes_positions

    def forward(self, input_ids, position_ids, cu_seqlens):
        places = torch.arange(input_ids.shape[1])
        x = self.tokens(input_ids) + self.positions(position_ids if self.takes_positions else places[None])
        sequence = torch.bucketize(places, cu_seqlens[1:].long(), right=True)
        may = places[:, None] >= places
        if self.keeps_apart:
            may = may & (sequence[:, None] == sequence)
        q, v = x[:, None] / 8, x[:, None]
        return self.dropout(torch.nn.functional.scaled_dot_product_attention(q, q, v, attn_mask=may)[:, 0])


SAMPLES = [{"input_ids": list(range(at, at + 5 + at))} for at in (3, 1, 9)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_model_that_keeps_sequences_apart_passes_and_stays_in_its_mode(dtype):
    model = Attention(dtype=dtype)
    model.positions.eval()
    assert check_packing(model, SAMPLES) <= torch.finfo(dtype).eps ** 0.5
    assert [model.training, model.dropout.training, model.positions.training] == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_mixes_sequences_is_refused(dtype):
    with pytest.raises(NumericsError, match="mixes packed sequences: outputs of sequence 1"):
        check_packing(Attention(keeps_apart=False, dtype=dtype), SAMPLES)


def test_positions_that_run_on_are_refused():
    with pytest.raises(NumericsError, match="position_ids"):
        check_packing(Attention(takes_positions=False), SAMPLES)


def test_one_sequence_shows_nothing():
    with pytest.raises(InputError):
        check_packing(Attention(), SAMPLES[:1])


@pytest.mark.long
def test_a_causal_model_of_transformers_passes_only_without_the_cache_that_makes_it_forget_positions():
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=100, use_cache=False, **small))
    assert check_packing(model, SAMPLES) < 1e-4
    model.config.use_cache = True
    with pytest.raises(NumericsError, match="mixes"):
        check_packing(model, SAMPLES)


@pytest.mark.parametrize(
    "samples", [[{"input_ids": [1], "a": [1]}, {"input_ids": [1]}], [{"input_ids": [1]}, {}]]
)
def test_samples_are_refused_when_their_keys_differ(samples):
    with pytest.raises(InputError, match=r"keys|input_ids"):
        pack(samples)
