"""Pack sequences into one row without padding, for attention that keeps the sequences apart."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dynotune.runtime.data.batches import mapped
from dynotune.runtime.errors import InputError, NumericsError, TooLargeError

__all__ = ["check_packing", "pack"]

Packed = dict[str, Any]


def pack(
    samples: Sequence[Mapping[str, Any]], max_tokens: int | None = None, *, for_transformers: bool = False
) -> Packed:
    """Concatenate sequences into one row; a collate function for `LengthBatchSampler(packed=True)`.

    Returns:
        Each key of the samples as a tensor [1, tokens]; `position_ids` [1, tokens], from 0 in each sequence;
        `cu_seqlens` [sequences + 1] int32, the start of each sequence and the end of the last; `max_seqlen`.
        The first of each sequence's `labels` becomes -100: a causal loss would predict it from the sequence
        before.

    Args:
        for_transformers: use the names that Transformers' FlashAttention expects for `cu_seqlens` and
            `max_seqlen`.

    Raises:
        InputError: if there is no sample, a sample is empty, samples have different keys, or a key does not
            have one value per token.
        TooLargeError: if there are more than `max_tokens` tokens.
    """
    if not all("input_ids" in sample for sample in samples):
        raise InputError("A sample has no input_ids.")
    lengths = [len(sample["input_ids"]) for sample in samples]
    if not lengths or not all(lengths):
        raise InputError("Nothing to pack: there is no sample, or an empty one.")
    if max_tokens is not None and sum(lengths) > max_tokens:
        raise TooLargeError(f"{sum(lengths)} tokens are more than max_tokens={max_tokens}.")
    packed: Packed = {}
    for at, sample in enumerate(samples):
        if different := sample.keys() ^ samples[0].keys():
            raise InputError(
                f"Sample {at} has other keys than sample 0: {next(iter(different))!r} is in one of them only."
            )
    for key in samples[0]:
        parts = [torch.as_tensor(sample[key]) for sample in samples]
        if [each.shape[:1] for each in parts] != [torch.Size([length]) for length in lengths]:
            raise InputError(f"{key} has not one value for each token.")
        packed[key] = torch.cat(parts)[None]
    packed.pop("attention_mask", None)  # nothing is padded
    packed["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None]
    starts = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    if "labels" in packed:
        packed["labels"][0, starts[:-1].long()] = -100
    names = ("cu_seq_lens_q", "cu_seq_lens_k"), ("max_length_q", "max_length_k")
    of_starts, of_longest = names if for_transformers else (("cu_seqlens",), ("max_seqlen",))
    return packed | dict.fromkeys(of_starts, starts) | dict.fromkeys(of_longest, max(lengths))


def check_packing(
    model: torch.nn.Module,
    samples: Sequence[Mapping[str, Any]],
    call: Callable[[torch.nn.Module, Packed], torch.Tensor] | None = None,
) -> float:
    """Compare a model's outputs for packed sequences with those for each alone, and with changed tokens in
    the others.

    The model runs in `eval()` without gradients; changed tokens in the others must not change an output.

    Args:
        samples: two or more samples with `input_ids`, on the CPU.
        call: `call(model, packed)` returns the outputs [1, tokens, …]; by default `forward` gets the keys
            that it accepts, and `logits` or the first output is compared.

    Returns:
        The largest difference, as a share of the largest output.

    Raises:
        NumericsError: if attention mixes the sequences, or positions continue from one sequence to the next.
        InputError: if there are fewer than two samples.
    """
    if len(samples) < 2:
        raise InputError("Two samples are needed to see whether packing mixes them.")
    call = call or _call
    parameter = next(model.parameters(), torch.zeros(()))
    tokens = [torch.as_tensor(sample["input_ids"]) for sample in samples]
    num_ids = 1 + int(max(each.max() for each in tokens))

    def outputs(sequences: Sequence[torch.Tensor]) -> torch.Tensor:
        rows = [{"input_ids": each} for each in sequences]
        packed = pack(rows) | pack(rows, for_transformers=True)
        return call(model, mapped(packed, lambda each: each.to(parameter.device)))[0].double()

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            together = outputs(tokens).split([len(each) for each in tokens])
            alone = [outputs([each]) for each in tokens]
            scale = max(float(each.abs().max()) for each in alone) or 1.0
            eps = torch.finfo(parameter.dtype).eps
            for at, each in enumerate(tokens):
                others = [one if one is each else (one + 1) % num_ids for one in tokens]
                mixed = outputs(others).split([len(one) for one in tokens])[at] - together[at]
                if float(mixed.abs().max()) > 4 * eps * scale:
                    raise NumericsError(
                        f"Attention mixes packed sequences: outputs of sequence {at} change with tokens of "
                        "others.",
                        hint=(
                            "Use an attention that knows cu_seqlens or position_ids (Transformers: "
                            "use_cache=False)."
                        ),
                    )
    finally:
        for module, is_training in modes:
            module.training = is_training
    difference = max(float((a - b).abs().max()) for a, b in zip(together, alone, strict=True)) / scale
    if not difference <= eps**0.5:
        raise NumericsError(
            f"Outputs of packed sequences differ by {difference:.2g} of the largest from those of each "
            "alone.",
            hint="The model must take position_ids, from 0 in each sequence.",
        )
    return difference


def _call(model: torch.nn.Module, packed: Packed) -> torch.Tensor:
    parameters = inspect.signature(model.forward).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    found: Any = model(**{key: each for key, each in packed.items() if takes_all or key in parameters})
    logits: torch.Tensor = (
        found if torch.is_tensor(found) else found["logits"] if hasattr(found, "keys") else found[0]
    )
    return logits
