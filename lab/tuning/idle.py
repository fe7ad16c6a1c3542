"""Tunes in which every candidate does nothing: what they are asked, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune import knobs
from lab.tuning.parts import Row, is_done
from lab.tuning.programs import Program

ALLOWED_SHARE = 1 / 20
IN_BF16 = {"TUNED_AS": "amp=bf16"}
"""Of a program's environment: its products of matrices are in bfloat16, so precision of float32 is nothing to
it."""


def words_of(num_settings: int, budget_s: float, seed: int) -> list[str]:
    """Of `dynotune tune`, with nothing to try but variables that nothing reads."""
    return _words(
        [f"env.DYNOTUNE_NOTHING_{number}=1" for number in range(1, num_settings + 1)], budget_s, seed
    )


def rounding_words(budget_s: float, seed: int) -> list[str]:
    """Of `dynotune tune`, with nothing to try but how float32 is multiplied."""
    return _words(["matmul.fp32_precision=high", "matmul.fp32_precision=medium"], budget_s, seed)


def _words(tried: Sequence[str], budget_s: float, seed: int) -> list[str]:
    also = [word for setting in tried for word in ("--try", setting)]
    names = {setting.partition("=")[0] for setting in tried}
    rest = [word for knob in knobs.all_knobs() if knob.id not in names for word in ("--exclude", knob.id)]
    return ["tune", "--budget", f"{budget_s:.0f}s", "--seed", str(seed), *also, *rest]


def tunes_of(programs: Sequence[Program], num: int) -> dict[str, tuple[Program, int]]:
    """By name: the program, and the seed."""
    return {
        f"{programs[at % len(programs)].name}-{at + 1:02}": (programs[at % len(programs)], at)
        for at in range(num)
    }


def summary(tunes: dict[str, Row]) -> Row:
    # One that came to try nothing, for want of time, says nothing.
    done = [row for row in tunes.values() if is_done(row) and set(row["fates"]) != {"not-tried"}]
    fooled = sum(bool(row["recipe"]) for row in done)
    return {
        "tunes": len(done),
        "with_a_recipe": fooled,
        "trials": sum(row["num_trials"] for row in done),
        "kept": fooled <= ALLOWED_SHARE * len(done),
    }


def kept(row: Row) -> Row:
    """Without what says the same in every tune."""
    if not is_done(row):
        return row
    fates = [kind for kind, _ in row["fates"].values()]
    names = ("recipe", "verdict", "stated", "ci", "num_trials", "noise", "run_s", "budget_s")
    return {
        **{name: row[name] for name in names},
        "fates": {kind: fates.count(kind) for kind in sorted(set(fates))},
    }
