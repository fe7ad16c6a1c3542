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
from dynotune.schema.memory import Moment, RankMemory, Term
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

_BLOCK = re.compile(r"(.+)\.\d+(?=\.|$)")
_Saved = tuple[float, str, str]
"""Bytes saved at the peak, the claim, and the remedy."""
_Judge = Callable[[RankMemory, Moment], _Saved | None]
_WRONG = "the peak lies elsewhere once this is done: the next highest level then bounds what is saved."


def _saving(
    id: str, *, title: str, sees: str, candidates: tuple[Setting, ...] = (), term: str = ""
) -> Callable[[_Judge], Rule]:
    """Make the rule of a judge of one rank: it finds something where what is saved is worth it.

    Args:
        term: whose largest line is where the finding lies.
    """

    def make(judge: _Judge) -> Rule:
        def judged(view: ObservationView) -> Iterator[Finding]:
            for rank, peak in _fullest(view):
                saved = judge(rank, peak)
                if saved is None or saved[0] < max(policy.SPLIT_BYTES, policy.LEAST_SHARE * peak.total_bytes):
                    return
                share = saved[0] / peak.total_bytes
                yield Finding(
                    id=id,
                    severity="medium" if share >= policy.SPLIT_SHARE else "low",
                    kind="memory",
                    claim=saved[1],
                    share=Unknown("it saves memory"),
                    evidence=[f"predicted: {saved[0] / 2**20:,.0f} MiB less at the peak, {share:.0%} of the process"],
                    where=_place(peak, term),
                    candidates=expandable(view) if id == "memory-segments" else list(candidates),
                    remedy=saved[2],
                )

        return rule(id, "program", title=title, sees=sees, costs="memory.", wrong_when=_WRONG, candidates=candidates)(
            judged
        )

    return make


def _fullest(view: ObservationView) -> list[tuple[RankMemory, Moment]]:
    """The rank that holds most; none where memory was not recorded, which is no more than was asked for."""
    ranks = view.observation.memory
    if isinstance(ranks, Unknown):
        return []
    known = [(rank, rank.peak) for rank in ranks if isinstance(rank.peak, Moment)]
    return sorted(known, key=lambda pair: -pair[1].total_bytes)[:1]


def _term(peak: Moment, name: str) -> Term | None:
    return next((term for term in peak.terms if term.name == name), None)


def _place(peak: Moment, name: str) -> Place:
    found = _term(peak, name)
    return Place(function=found.lines[0].name) if found is not None and found.lines else Place()


def _bytes(rank: RankMemory, name: str) -> float:
    value = rank.facts.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


@_saving(
    "memory-autocast",
    title="Activations are kept in float32.",
    sees="weights in float32, forward passes outside of autocast, and the activations at the peak: half of them, less "
    "the half-precision copies of the weights that autocast keeps.",
    candidates=(Setting("precision.autocast", "bf16"),),
    term="activations",
)
def autocast(rank: RankMemory, peak: Moment) -> _Saved | None:
    if rank.facts.get("autocast") is not False or rank.facts.get("dtype") != "float32":
        return None
    saved = peak.of("activations") / 2 - peak.of("weights") / 2
    return saved, "Activations are kept in float32.", "Run the forward pass under torch.autocast in bfloat16."


@_saving(
    "memory-optimizer-copies",
    title="The optimizer's step holds copies of its operands.",
    sees="a peak within an optimizer's step, and the temporary buffers that foreach operations allocate there.",
    candidates=(Setting("optimizer.fused", True),),
    term="temporary",
)
def optimizer_copies(rank: RankMemory, peak: Moment) -> _Saved | None:
    if rank.facts.get("fused") or not rank.facts.get("peak_in_update"):
        return None
    claim = "The peak lies in the optimizer's step, which copies its operands."
    return float(peak.of("temporary")), claim, "Build the optimizer with fused=True, or with foreach=False."


@_saving(
    "memory-optimizer-8bit",
    title="The optimizer keeps its moments in float32.",
    sees="states of Adam or AdamW, and that bitsandbytes is installed: three quarters of them.",
)
def optimizer_8bit(rank: RankMemory, peak: Moment) -> _Saved | None:
    kind = str(rank.facts.get("optimizer")).rpartition(".")[2]
    if not rank.facts.get("bitsandbytes") or kind not in ("Adam", "AdamW"):
        return None
    claim = "The optimizer keeps two moments in float32."
    return 0.75 * peak.of("optimizer"), claim, f"Use bitsandbytes.optim.{kind}8bit; check the loss, which changes."


@_saving(
    "memory-checkpointing",
    title="All activations are kept for the backward pass.",
    sees="modules of a list (`layers.0`, `layers.1`), none of which is computed again in the backward pass, and their "
    "activations at the peak: all but those of the largest one.",
    term="activations",
)
def checkpointing(rank: RankMemory, peak: Moment) -> _Saved | None:
    found = _term(peak, "activations")
    if not rank.trains or rank.facts.get("recomputes") or found is None:
        return None
    blocks: Counter[str] = Counter()
    for part in found.modules:
        if match := _BLOCK.match(part.name):
            blocks[match[0]] += part.num_bytes
    lists: dict[str, list[int]] = {}
    for name, size in blocks.items():
        lists.setdefault(name.rpartition(".")[0], []).append(size)
    name, sizes = max(lists.items(), key=lambda item: sum(item[1]), default=("", []))
    if len(sizes) < 2:
        return None
    remedy = f"Wrap the modules of {name} in torch.utils.checkpoint: each runs its forward once more."
    return float(sum(sizes) - max(sizes)), f"{name} keeps the activations of all its modules.", remedy


@_saving(
    "memory-old-gradients",
    title="Gradients of the step before are held at the peak.",
    sees="gradients that are older than the recorded steps and alive at the peak: they are set to zero, not to None.",
)
def old_gradients(rank: RankMemory, peak: Moment) -> _Saved | None:
    claim = "The gradients of the step before are alive at the peak."
    return _bytes(rank, "old_gradient_bytes"), claim, "Call zero_grad(set_to_none=True) before the forward pass."


@_saving(
    "memory-graph-unused",
    title="Activations are kept for a backward pass that never comes.",
    sees="calls with gradients enabled, no optimizer and no gradient, and activations that outlive their call.",
    term="activations",
)
def graph_unused(rank: RankMemory, peak: Moment) -> _Saved | None:
    if rank.trains or not rank.facts.get("grad_enabled"):
        return None
    claim = "Activations are kept for a backward pass that never comes."
    return _bytes(rank, "graph_bytes"), claim, "Call the model under torch.inference_mode()."


@_saving(
    "memory-bucket-copies",
    title="DistributedDataParallel holds each gradient twice.",
    sees="gradient_as_bucket_view=False, and the gradients at the peak.",
    candidates=(),
)
def bucket_copies(rank: RankMemory, peak: Moment) -> _Saved | None:
    if rank.facts.get("bucket_view") is not False:
        return None
    claim = "DistributedDataParallel holds each gradient twice."
    return float(peak.of("gradients")), claim, "Build it with gradient_as_bucket_view=True."


@_saving(
    "memory-segments",
    title="Reserved memory is free only in pieces at the peak.",
    sees="memory that is reserved at the peak, and free between blocks in use.",
    candidates=(Setting("alloc.expandable_segments", True),),
)
def segments(rank: RankMemory, peak: Moment) -> _Saved | None:
    claim = "Reserved memory is free only in pieces at the peak."
    return float(peak.of("fragmentation")), claim, "Let segments grow: alloc.expandable_segments=true."


@_saving(
    "memory-logits",
    title="The model's output is large, and in float32.",
    sees="the tensors that an outermost module returns: half of those in float32.",
    term="activations",
)
def logits(rank: RankMemory, peak: Moment) -> _Saved | None:
    claim = "The model's output is in float32, and large."
    remedy = "Keep it in bfloat16 up to the loss, or compute the loss in chunks."
    return _bytes(rank, "float32_output_bytes") / 2, claim, remedy


@_saving(
    "memory-idle-gradients",
    title="Gradients are computed that no optimizer uses.",
    sees="gradients of parameters that no optimizer has.",
)
def idle_gradients(rank: RankMemory, peak: Moment) -> _Saved | None:
    claim = "Gradients are held that no optimizer uses."
    return _bytes(rank, "idle_gradient_bytes"), claim, "Freeze these parameters: requires_grad_(False)."


RULES = (
    *(autocast, optimizer_copies, optimizer_8bit, checkpointing, old_gradients, graph_unused, bucket_copies),
    *(segments, logits, idle_gradients),
)
