"""What would save device memory, by the terms of a recorded step: each with the bytes predicted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from dynotune.doctor import policy
from dynotune.doctor.declaration import Rule, rule
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.rules.memory import expandable
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment, RankMemory
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

_BLOCK = re.compile(r"(.+)\.\d+(?=\.|$)")
_WRONG = "the peak lies elsewhere once this is done: the next highest level then bounds what is saved."


def _saving(
    id: str,
    claim: str,
    saved: Callable[[RankMemory, Moment], float],
    *,
    sees: str,
    remedy: str,
    candidates: tuple[Setting, ...] = (),
    term: str = "",
    explains: tuple[str, ...] = (),
) -> Rule:
    """Make the rule that finds what saves memory, where that is worth it.

    Args:
        saved: bytes at the peak; 0 without the evidence.
        term: whose largest module list, or line, is where the finding lies.
    """

    def judge(view: ObservationView) -> Iterator[Finding]:
        for rank, peak in _fullest(view):
            num_bytes = saved(rank, peak)
            share = num_bytes / max(1, peak.total_bytes)
            if num_bytes < policy.SPLIT_BYTES or share < policy.LEAST_SHARE:
                return
            lines = [line for one in peak.terms if one.name == term for line in one.lines]
            yield Finding(
                id=id,
                severity="medium" if share >= policy.SPLIT_SHARE else "low",
                kind="memory",
                claim=claim,
                share=Unknown("it saves memory"),
                evidence=[f"predicted: {num_bytes / 2**20:,.0f} MiB less at the peak, {share:.0%} of the process"],
                where=Place(function=lines[0].name) if lines else Place(),
                candidates=expandable(view) if id == "memory-segments" else list(candidates),
                remedy=remedy.format(modules=_lists(peak)[0]),
            )

    texts = {"title": claim, "sees": sees, "costs": "memory.", "wrong_when": _WRONG}
    return rule(id, "program", **texts, candidates=candidates, explains=explains)(judge)


def _fullest(view: ObservationView) -> list[tuple[RankMemory, Moment]]:
    """The rank that holds most; none where memory was not recorded, which is no more than was asked for."""
    ranks = view.observation.memory
    if isinstance(ranks, Unknown):
        return []
    known = [(rank, rank.peak) for rank in ranks if isinstance(rank.peak, Moment)]
    return sorted(known, key=lambda pair: -pair[1].total_bytes)[:1]


def _lists(peak: Moment) -> tuple[str, list[int]]:
    """The list of modules (`layers.0`, `layers.1`) that holds most activations, and what each of them holds."""
    parts = [part for term in peak.terms if term.name == "activations" for part in term.modules]
    blocks: Counter[str] = Counter()
    for part in parts:
        if match := _BLOCK.match(part.name):
            blocks[match[0]] += part.num_bytes
    lists: dict[str, list[int]] = {}
    for name, size in blocks.items():
        lists.setdefault(name.rpartition(".")[0], []).append(size)
    return max(lists.items(), key=lambda item: sum(item[1]), default=("the model", [0]))


def _fact(name: str, share: float = 1.0) -> Callable[[RankMemory, Moment], float]:
    """Bytes that the agent or the accounting told of."""

    def saved(rank: RankMemory, peak: Moment) -> float:
        value = rank.facts.get(name)
        return share * value if isinstance(value, int | float) else 0.0

    return saved


def _autocast(rank: RankMemory, peak: Moment) -> float:
    is_float32 = rank.facts.get("autocast") is False and rank.facts.get("dtype") == "float32"
    return (peak.of("activations") - peak.of("weights")) / 2 if is_float32 else 0.0


def _copies(rank: RankMemory, peak: Moment) -> float:
    return peak.of("temporary") if rank.facts.get("peak_in_update") and not rank.facts.get("fused") else 0.0


def _moments(rank: RankMemory, peak: Moment) -> float:
    is_adam = str(rank.facts.get("optimizer")).endswith((".Adam", ".AdamW"))
    return 0.75 * peak.of("optimizer") if is_adam and rank.facts.get("bitsandbytes") else 0.0


def _checkpointing(rank: RankMemory, peak: Moment) -> float:
    sizes = _lists(peak)[1]
    return sum(sizes) - max(sizes) if rank.trains and not rank.facts.get("recomputes") else 0.0


def _graph(rank: RankMemory, peak: Moment) -> float:
    is_kept = bool(rank.facts.get("grad_enabled")) and not rank.trains
    return _fact("graph_bytes")(rank, peak) if is_kept else 0.0


def _buckets(rank: RankMemory, peak: Moment) -> float:
    return peak.of("gradients") / 2 if rank.facts.get("bucket_view") is False else 0.0


autocast = _saving(
    "memory-autocast",
    "Activations are kept in float32.",
    _autocast,
    sees="weights in float32, forward passes outside of autocast, and the activations at the peak: half of them, "
    "less the half-precision copies of the weights that autocast keeps.",
    remedy="Run the forward pass under torch.autocast in bfloat16.",
    candidates=(Setting("precision.autocast", "bf16"),),
    term="activations",
)
optimizer_copies = _saving(
    "memory-optimizer-copies",
    "The peak lies in the optimizer's step, which copies its operands.",
    _copies,
    sees="a peak within an optimizer's step, and the temporary buffers that foreach operations allocate there.",
    remedy="Build the optimizer with fused=True, or with foreach=False.",
    candidates=(Setting("optimizer.fused", True),),
    term="temporary",
)
optimizer_8bit = _saving(
    "memory-optimizer-8bit",
    "The optimizer keeps two moments in float32.",
    _moments,
    sees="states of Adam or AdamW, and that bitsandbytes is installed: three quarters of them.",
    remedy="Use the optimizer of that name with 8bit in bitsandbytes.optim; check the loss, which changes.",
)
checkpointing = _saving(
    "memory-checkpointing",
    "All modules of a list keep their activations for the backward pass.",
    _checkpointing,
    sees="modules of a list (`layers.0`, `layers.1`), none of which is computed again in the backward pass, and "
    "their activations at the peak: all but those of the largest one.",
    remedy="Wrap the modules of {modules} in torch.utils.checkpoint: each runs its forward once more.",
    term="activations",
)
old_gradients = _saving(
    "memory-old-gradients",
    "The gradients of the step before are alive at the peak.",
    _fact("old_gradient_bytes"),
    sees="gradients older than the recorded steps and alive at the peak: they are set to zero and not to None.",
    remedy="Call zero_grad(set_to_none=True) before the forward pass.",
)
graph_unused = _saving(
    "memory-graph-unused",
    "Activations are kept for a backward pass that never comes.",
    _graph,
    sees="calls with gradients enabled, no optimizer and no gradient, and activations that outlive their call.",
    remedy="Call the model under torch.inference_mode().",
    term="activations",
)
bucket_copies = _saving(
    "memory-bucket-copies",
    "DistributedDataParallel holds each gradient twice.",
    _buckets,
    sees="gradient_as_bucket_view=False, and the gradients at the peak: half of them, as their copies count as such.",
    remedy="Build it with gradient_as_bucket_view=True.",
)
segments = _saving(
    "memory-segments",
    "Reserved memory is free only in pieces at the peak.",
    lambda rank, peak: peak.of("fragmentation"),
    sees="memory that is reserved at the peak, and free between blocks in use.",
    remedy="Let segments grow: alloc.expandable_segments=true.",
    candidates=(Setting("alloc.expandable_segments", True),),
    explains=("fragmentation",),
)
logits = _saving(
    "memory-logits",
    "The model's output is in float32, and large.",
    _fact("float32_output_bytes", 0.5),
    sees="the tensors that an outermost module returns: half of those in float32.",
    remedy="Keep it in bfloat16 up to the loss, or compute the loss in chunks.",
    term="activations",
)
idle_gradients = _saving(
    "memory-idle-gradients",
    "Gradients are held that no optimizer uses.",
    _fact("idle_gradient_bytes"),
    sees="gradients of parameters that no optimizer has.",
    remedy="Freeze these parameters: requires_grad_(False).",
)

RULES = (
    autocast,
    optimizer_copies,
    optimizer_8bit,
    checkpointing,
    old_gradients,
    graph_unused,
    bucket_copies,
    segments,
    logits,
    idle_gradients,
)
