"""What a budget affords, and what of it is set aside before racing begins."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from dynotune.schema.facts import Unknown
from dynotune.schema.study import Candidate, Estimate, Study
from dynotune.search.bench import arm

# Confirmation is what a tune is for: so many pairs from so many runs on.
PAIRS_FROM_RUNS = ((12, 120), (8, 72), (6, 40), (4, 0))
LEAST_PAIRS = PAIRS_FROM_RUNS[-1][0]
ABLATE_SHARE = 0.27
# The whole, each of three settings left out, and the baseline, in 2 blocks.
LEAST_ABLATION_RUNS = 10
MOST_ABLATION_RUNS = 60
# Before so many are tried, or all, nothing is set aside for ablation.
LEAST_ARMS = 6
RUNS_A_BLOCK = 6
# Losses or outputs of the baseline, and of what is to be proved.
CHECK_RUNS = 2
UNKNOWN_RUN_S = 60.0


class ToTry(NamedTuple):
    """Candidates to try alone, and only beside others (these cost no runs of their own); pilots; runs of checks.

    Args:
        num_known: that were screened within one process, and cost no run of their own either; those that may help.
    """

    num_alone: int
    num_beside: int = 0
    num_pilots: int = 0
    num_checks: int = 0
    num_known: int = 0


class Afforded(msgspec.Struct, frozen=True, kw_only=True):
    """In runs as long as the baseline's.

    Args:
        num_runs: all together; `num_arms`: candidates that are tried.
        num_blocks: of several settings together, after each has run alone.
        num_checks, num_ablation_runs, num_pairs: set aside.
        text: the same in words.
    """

    num_runs: int
    num_arms: int
    num_blocks: int
    num_checks: int
    num_ablation_runs: int
    num_pairs: int
    text: str


def afforded(left_s: float, run_s: float, asked: ToTry) -> Afforded:
    """What the time from the baseline's pilot on affords."""
    num_runs = max(0, int(left_s / run_s)) if run_s > 0 else 0
    num_pairs = next(pairs for pairs, least in PAIRS_FROM_RUNS if num_runs >= least)
    several = asked.num_alone + asked.num_beside + asked.num_known > 1
    runs_a_candidate = 1 + asked.num_pilots / asked.num_alone if several and asked.num_alone else 1.0
    spare = num_runs - 2 * num_pairs - asked.num_checks
    wanted = min(asked.num_alone, LEAST_ARMS)
    for num_ablation in _ablations(num_runs) if several else (0,):
        # The baseline's place in the first block and, where more is to be known than one setting, in the second.
        num_baselines = int(several and asked.num_alone > 0) + bool(num_ablation)
        num_arms = max(0, math.floor((spare - num_ablation - num_baselines) / runs_a_candidate))
        num_arms = min(asked.num_alone, num_arms)
        if num_arms >= wanted and (num_arms or num_ablation + num_baselines <= spare):
            break
    to_join = spare - num_ablation - num_baselines - runs_a_candidate * num_arms
    num_blocks = max(0, int(to_join / RUNS_A_BLOCK)) if several else 0
    num_asked = num_arms, asked.num_alone, asked.num_beside if num_arms else 0
    nothing = num_arms == 0 and not (asked.num_known and spare >= 0)
    text = _in_words(num_runs, run_s, num_asked, num_blocks, num_ablation, 0 if nothing else num_pairs)
    if nothing:
        least = 2 * num_pairs + asked.num_checks
        least += 0 if asked.num_known else int(several) + math.ceil(runs_a_candidate)
        text = f"{text[:-1]}, which takes {least}. A longer --budget does it."
    return Afforded(
        num_runs=num_runs,
        num_arms=num_arms,
        num_blocks=0 if nothing else num_blocks,
        num_checks=asked.num_checks,
        num_ablation_runs=num_ablation,
        num_pairs=0 if nothing else num_pairs,
        text=text,
    )


def _ablations(num_runs: int) -> tuple[int, ...]:
    """Runs to set aside for ablation, the fewer the worse; without any, one setting alone can be proved."""
    return min(MOST_ABLATION_RUNS, max(LEAST_ABLATION_RUNS, int(ABLATE_SHARE * num_runs))), LEAST_ABLATION_RUNS, 0


def _in_words(
    num_runs: int, run_s: float, num_asked: tuple[int, int, int], num_blocks: int, num_ablation: int, num_pairs: int
) -> str:
    num_arms, num_candidates, num_beside = num_asked
    runs = f"The budget affords about {num_runs} runs of {run_s:.3g} s"
    if num_pairs == 0:
        return f"{runs}: too few to try a setting and prove it."
    tried = f"all {num_candidates}" if num_arms == num_candidates else f"{num_arms} of {num_candidates}"
    tried = "both" if num_arms == num_candidates == 2 else tried if num_arms else f"none of {num_candidates} more"
    one = "the one setting tried" if num_arms else "the one more setting not tried"
    parts = [f"{tried} settings tried" if num_candidates > 1 else one] if num_candidates else []
    if num_beside and parts:
        parts[0] += f" alone, {num_beside} only beside others"
    if num_blocks:
        parts.append(f"then several together in up to {num_blocks} {'block' if num_blocks == 1 else 'blocks'}")
    if num_ablation:
        parts.append(f"some {num_ablation} runs to see what each of the best adds")
    parts.append(f"up to {num_pairs} pairs to confirm the result")
    return f"{runs}: {', '.join(parts)}."


def worth_trying(study: Study) -> list[Candidate]:
    """Candidates that may gain more than the margin, or that the user asked for.

    What was asked for comes first; of that, what a finding names, too: what nothing is known of may do nothing.
    """
    may_gain = [one for one in study.candidates if one.by_user or bound_log(one) > math.log1p(study.margin)]
    return sorted(may_gain, key=lambda one: (not one.by_user, not one.why, -bound_log(one)))


def to_try(study: Study, piloted: Collection[str] = ()) -> ToTry:
    """How many of the candidates that are worth it run alone or beside others, and what they need besides.

    Args:
        piloted: ids of those that had their pilot.
    """
    worth = worth_trying(study)
    screened = {one.arm: one for one in study.estimates if one.phase == "screen"}
    alone = [one for one in worth if not one.needs and one.id not in screened]
    num_beside = sum(bool(one.needs) for one in worth)
    num_known = sum(one.id in screened and may_help(study, screened[one.id]) for one in worth)
    num_checks = CHECK_RUNS if any(one.effect == "numerics" for one in worth) else 0
    num_pilots = sum(one.needs_warm_cache and one.id not in piloted for one in alone)
    return ToTry(len(alone), num_beside, num_pilots, num_checks, num_known)


def may_help(study: Study, estimate: Estimate) -> bool:
    """Whether it leaves open that the arm gains more than the margin."""
    return estimate.ci is None or estimate.ci[1] > 1 + study.margin


def affords_more(study: Study, left_s: float) -> bool:
    """Whether one of what is named beyond the recipe can be proved: a pilot, a look at results, the fewest pairs.

    Runs with the recipe are the baseline's then, and shorter ones where it helps.
    """
    key, one_more = (
        arm(study.recipe or []).key,
        to_try(msgspec.structs.replace(study, candidates=study.next_candidates)),
    )
    runs_s = [trial.wall_s for trial in study.trials if trial.arm == key and trial.phase in ("ablate", "confirm")]
    run_s = statistics.median(runs_s) if runs_s else study.run_s or UNKNOWN_RUN_S
    # What compiles does so again, in caches of its own: the recipe, and what would come on top.
    pilots_s = [trial.wall_s for trial in study.trials if trial.phase == "pilot" and trial.arm != ""]
    cold_s = 2 * max([0.0, *pilots_s]) if one_more.num_pilots or _compiles(study) else 0.0
    return left_s >= cold_s + (1 + one_more.num_checks + 2 * LEAST_PAIRS) * run_s


def _compiles(study: Study) -> bool:
    return any(one.needs_warm_cache for one in study.candidates if one.setting in (study.recipe or []))


def bound_log(candidate: Candidate) -> float:
    """The most that a candidate can gain, as the logarithm of a ratio; infinite where nothing bounds it."""
    if isinstance(candidate.bound, Unknown) or candidate.bound >= 1:
        return math.inf
    return -math.log1p(-max(0.0, candidate.bound))
