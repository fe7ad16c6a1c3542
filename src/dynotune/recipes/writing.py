"""Write the recipe of a study."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dynotune import knobs
from dynotune.recipes.checking import FACTS, command_hash, differences, unproved
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Facts
from dynotune.schema.knob import Knob, Scalar
from dynotune.schema.recipe import EFFECTS, SCHEMA, Header, Proof, Recipe
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import PART_ERROR, without

if TYPE_CHECKING:
    from dynotune.schema.comparison import Comparison
    from dynotune.schema.study import Study

MOST_LOG = 50.0


def recipe_of(study: Study) -> Recipe:
    """Return the recipe that `study` proved.

    Raises:
        UsageError: the study proved no setting.
    """
    confirmed, chosen = study.confirmed, study.recipe
    if (
        not chosen
        or confirmed is None
        or confirmed.verdict != "faster"
        or not confirmed.speedup
        or not confirmed.ci
    ):
        raise UsageError("Nothing was proved, so there is no recipe to write.")
    head = Header(
        schema=SCHEMA,
        created=_created(study),
        command=study.run.command,
        objective=study.run.objective,
        speedup=confirmed.speedup,
        ci=confirmed.ci,
        num_pairs=confirmed.num_pairs,
        within=confirmed.within,
        num_blocks=len(confirmed.blocks.pairs) if confirmed.pooled and confirmed.blocks is not None else 0,
        step_function=study.run.step_function,
        phase=study.run.phase,
        caches=study.run.caches,
        study=study.id,
        baseline=list(map(str, knobs.of_launch(study.run.settings))),
    )
    proofs = {setting.knob: _proof(study, setting, confirmed) for setting in chosen}
    if study.base_recipe is not None:
        first = study.base_recipe.recipe
        if not _holds(first, study):
            head = replace(head, speedup=None, ci=None, num_pairs=None)
        else:
            head = _times(head, first.recipe)
            proofs = {proof.knob: proof for proof in first.proof} | proofs
    chosen = sorted(over(study.run.settings, chosen), key=lambda setting: setting.knob)
    return Recipe(
        head,
        settings={setting.knob: setting.value for setting in chosen},
        proof=[proofs[setting.knob] for setting in chosen if setting.knob in proofs],
        facts=facts_to_keep(study.facts, study.run.command),
        about={setting.knob: _about(knobs.get(setting.knob), setting.knob in proofs) for setting in chosen},
    )


def _about(knob: Knob, has_proof: bool) -> str:
    """Describe a knob, with its effect where no proof states the effect."""
    return knob.doc if has_proof else f"{knob.doc} Effect: {EFFECTS[knob.effect]}."


def _holds(first: Recipe, study: Study) -> bool:
    """Tell whether a recipe's statement was proved on this machine and command, and with its present
    settings."""
    head, run = first.recipe, study.run
    told = (head.objective, head.caches, head.step_function, head.phase)
    now = (run.objective, run.caches, run.step_function, run.phase)
    whole = {proof.knob for proof in first.proof} == set(first.settings) and not unproved(first)
    # Settings that only the user may set may be left out here.
    applied = {str(Setting(knob, value)) for knob, value in first.settings.items()} <= set(
        map(str, run.settings)
    )
    return applied and told == now and whole and not differences(first, study.facts, run.command, strict=True)


def _times(head: Header, first: Header) -> Header:
    """Multiply two gains; the product is unknown if the first recipe states no gain."""
    gains = [_as_logs(one) for one in (first, head)]
    known = [gain for gain in gains if gain is not None]
    if len(known) < 2:
        return replace(head, speedup=None, ci=None, num_pairs=None)
    log = math.fsum(gain[1] for gain in known)
    # The two gains were measured independently, so the squares of their errors add.
    below, above = (math.hypot(*(gain[1] - gain[end] for gain in known)) for end in (0, 2))
    return replace(
        head, speedup=math.exp(log), ci=(math.exp(log - below), math.exp(log + above)), num_pairs=None
    )


def _as_logs(head: Header) -> tuple[float, float, float] | None:
    """Return logarithms of lower end, speed-up and upper end; None if a value is missing or implausible."""
    if head.speedup is None or head.ci is None:
        return None
    low, middle, high = (math.log(ratio) for ratio in (head.ci[0], head.speedup, head.ci[1]))
    return (low, middle, high) if max(map(abs, (low, middle, high))) < MOST_LOG else None


def facts_to_keep(facts: Facts, command: Sequence[str]) -> dict[str, Scalar]:
    """Return the facts that a recipe records; unknown and missing ones are left out."""
    kept: dict[str, Scalar] = {}
    for name, fact in FACTS.items():
        found = facts.get(fact)
        if isinstance(found, bool | int | float | str):
            kept[name] = found
    return {**kept, "command_hash": command_hash(command)}


def _created(study: Study) -> str:
    ended = [attempt.ended or attempt.began for attempt in study.attempts]
    return ended[-1] if ended else datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _proof(study: Study, setting: Setting, confirmed: Comparison) -> Proof:
    """Return the setting's proof: its ablation, or the confirmation if none was ablated or it is the only
    setting.

    When the study adds one setting to a recipe, the confirmation compares with and without just this setting.
    """
    effect = next((each.effect for each in study.candidates if each.setting == setting), None)
    effect = effect or knobs.get(setting.knob).effect
    found = _ablated(study, setting)
    if found is not None:
        speedup, ci, num_blocks, too = found
        return Proof(
            setting.knob,
            speedup,
            ci,
            num_blocks,
            effect,
            by="ablation",
            value=setting.value,
            left_out_too=too,
        )
    assert confirmed.speedup is not None and confirmed.ci is not None
    return Proof(
        setting.knob,
        confirmed.speedup,
        confirmed.ci,
        confirmed.num_pairs,
        effect,
        by="ablation" if study.run.settings and study.recipe == [setting] else "confirmation",
        value=setting.value,
    )


def _ablated(study: Study, setting: Setting) -> tuple[float, tuple[float, float], int, list[str]] | None:
    """Return the gain of all settings over all except this setting, from the last ablation that measured this
    gain.

    Also return the knobs that were left out together with this setting.
    """
    needing = [one for one in study.candidates if str(setting) in one.needs]
    for estimate in reversed(study.estimates):
        # If the round did not keep the setting, none of its comparisons is a proof.
        if (
            estimate.phase != "prune"
            or estimate.ci is None
            or (estimate.p is not None and estimate.p > PART_ERROR)
        ):
            continue
        for whole, rest, power in (
            (estimate.ids, estimate.against_ids, 1),
            (estimate.against_ids, estimate.ids, -1),
        ):
            if without(whole, str(setting), study.candidates) == rest:
                too = [one.setting.knob for one in needing if without(whole, one.id, ()) is not None]
                low, high = sorted(end**power for end in estimate.ci)
                return estimate.speedup**power, (low, high), estimate.num_blocks, too
    return None
