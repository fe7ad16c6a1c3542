"""Find savings of device memory, by the terms of a recorded step, each with a prediction in bytes."""

from collections import defaultdict
from collections.abc import Callable

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, Rule, rule
from dynotune.doctor.memory_pressure import is_short
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.rules.memory import expandable
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment, RankMemory
from dynotune.schema.trace_summary import Place

Saved = Callable[[RankMemory, Moment], float]
_COSTS = (
    "The finding costs device memory, not time. In a diagnosis its severity is low unless memory is short: "
    "70% of the "
    "memory that the process can use is in use, or an allocation failed."
)
_WRONG = "The finding is wrong if memory then peaks at another point in time: that peak bounds the saving."


def _lists(peak: Moment) -> tuple[str, list[int]]:
    """Return the list of modules (`layers.0`, `layers.1`) with the most activations, and the bytes of each
    module."""
    blocks = next((term.blocks for term in peak.terms if term.name == "activations"), {})
    lists: dict[str, list[int]] = defaultdict(list)
    for name, size in blocks.items():
        lists[name.rpartition(".")[0]].append(size)
    return max(lists.items(), key=lambda item: sum(item[1]), default=("the model", [0]))


def _fact(rank: RankMemory, name: str) -> float:
    """Return a count of bytes that the agent or the accounting reported."""
    value = rank.facts.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _autocast(rank: RankMemory, peak: Moment) -> float:
    is_float32 = rank.facts.get("autocast") is False and rank.facts.get("dtype") == "float32"
    return (peak.of("activations") - peak.of("weights")) / 2 if is_float32 else 0


def _checkpointing(rank: RankMemory, peak: Moment) -> float:
    sizes = _lists(peak)[1]
    return sum(sizes) - max(sizes) if rank.trains and not rank.facts.get("recomputes") else 0


def _saving(id: str, saved: Saved, *, term: str = "", remedy: str = "") -> Rule:
    """Return a rule for one saving of memory, which judges the rank that holds most and ignores small
    savings.

    A saving is loud only where memory is short: elsewhere it answers a question that nobody asked.

    Args:
        saved: function that returns the bytes saved at the peak; 0 without evidence.
        term: the term whose largest line is the finding's place.
        remedy: text with `{modules}`; "" for the one in the texts.
    """

    @rule(family="memory_terms", id=id, costs=_COSTS, wrong_when=_WRONG)
    def judge(view: ObservationView) -> Judgements:
        # Rules on memory that was not recorded find nothing, as if memory had not been asked for.
        ranks = [] if isinstance(view.observation.memory, Unknown) else view.observation.memory
        known = [(rank, rank.peak) for rank in ranks if isinstance(rank.peak, Moment)]
        for rank, peak in sorted(known, key=lambda pair: -pair[1].total_bytes)[:1]:
            num_bytes = saved(rank, peak)
            share = num_bytes / max(1, peak.total_bytes)
            if num_bytes < policy.SPLIT_BYTES or share < policy.LEAST_SHARE:
                return
            lines = [line for one in peak.terms if one.name == term for line in one.lines]
            yield Judgement(
                severity="medium" if share >= policy.SPLIT_SHARE and is_short(view) else "low",
                kind="memory",
                evidence=[
                    f"predicted: {num_bytes / 2**20:,.0f} MiB less at the peak, {share:.0%} of the process"
                ],
                where=Place(function=lines[0]) if lines else None,
                candidates=expandable(view) if id == "memory-segments" else None,
                remedy=remedy.format(modules=_lists(peak)[0]),
            )

    return judge


RULES = (
    _saving("memory-autocast", _autocast, term="activations"),
    _saving(
        "memory-optimizer-copies",
        lambda rank, peak: (
            _fact(rank, "peak_in_update") * (not rank.facts.get("fused")) * peak.of("temporary")
        ),
        term="temporary",
    ),
    _saving(
        "memory-checkpointing",
        _checkpointing,
        term="activations",
        remedy="Wrap the modules of {modules} in torch.utils.checkpoint: each runs its forward once more.",
    ),
    _saving("memory-old-gradients", lambda rank, _: _fact(rank, "old_gradient_bytes")),
    _saving(
        "memory-graph-unused",
        lambda rank, _: (
            _fact(rank, "graph_bytes") if rank.facts.get("grad_enabled") and not rank.trains else 0
        ),
        term="activations",
    ),
    _saving("memory-segments", lambda _, peak: peak.of("fragmentation")),
)
