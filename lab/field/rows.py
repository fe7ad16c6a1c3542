"""What a result of the field keeps of a program, and what is told of it."""

from __future__ import annotations

import math
import statistics
from typing import Any

from lab.field.published import Published
from lab.field.sources import SOURCES
from lab.tuning.parts import Row, is_done
from lab.tuning.programs import spelled
from lab.tuning.rows import ratio

GAIN = 1.05
"""From here on an informed hand counts as one that gains."""


def row_of(result: dict[str, Any], program: Published) -> dict[str, Any]:
    """The program's row in a result, made where there is none; what is put into it stays in the result."""
    rows: list[dict[str, Any]] = result.setdefault("programs", [])
    for row in rows:
        if (row["program"], row["device"]) == (program.name, program.device):
            return row
    source = SOURCES.get(program.repository)
    rows.append(
        {
            "program": program.name,
            "device": program.device,
            "repository": program.repository,
            "revision": source.revision if source else "",
            "command": " ".join(spelled(program.command(program.device))),
            "hand_writes": program.hand,
        }
    )
    return rows[-1]


def hands_gain(row: Row) -> float | None:
    """The informed hand's speed over that of the program as published; None where it was not measured."""
    hand = row.get("hand")
    if not is_done(hand):
        return None
    return 1.0 if hand.get("as") == "written" else hand["speedup"]


def reached(row: Row) -> float | None:
    """The recipe's speed over that of the program as published, by fresh pairs; 1 without a recipe."""
    tune, verify = row.get("tune"), row.get("verify")
    if not is_done(tune):
        return None
    if not tune["recipe"]:
        return 1.0
    return verify.get("speedup") if is_done(verify) else None


def share_of_speed(row: Row) -> float | None:
    """The recipe's speed over the informed hand's: measured in pairs of the two, else by what both gain over
    the program as published."""
    if is_done(row.get("informed")) and row["informed"].get("speedup"):
        return float(row["informed"]["speedup"])
    gain, speed = hands_gain(row), reached(row)
    return None if gain is None or speed is None else speed / gain


def share_of_gain(row: Row) -> float | None:
    """Of the time of a step that the informed hand saves in logarithms, so much is saved; None where it saves
    less than GAIN says."""
    gain, share = hands_gain(row), share_of_speed(row)
    if gain is None or share is None or gain < GAIN:
        return None
    return 1.0 + math.log(share) / math.log(gain)


def summary(rows: list[Row]) -> Row:
    """Counts and medians of the bars that the field has. A tune that failed has no recipe, where a hand
    gains."""
    asked = [row for row in rows if row.get("tune")]
    tuned = [row for row in asked if is_done(row["tune"])]
    gains = [row for row in asked if (hands_gain(row) or 0.0) >= GAIN]
    shares = [share for row in gains if (share := share_of_speed(row)) is not None]
    outcomes = [row["verify"]["outcome"] for row in tuned if is_done(row.get("verify"))]
    outcomes = [outcome for outcome in outcomes if outcome in ("met", "not-met", "undecided")]
    return {
        "programs": len(rows),
        "tuned": len(tuned),
        "failed": len(asked) - len(tuned),
        "with_a_recipe": sum(bool(row["tune"]["recipe"]) for row in tuned),
        "hand_measured": sum(hands_gain(row) is not None for row in asked),
        "hand_gains": len(gains),
        "recipe_where_hand_gains": sum(bool(row["tune"].get("recipe")) for row in gains),
        "median_share_of_hand": statistics.median(shares) if shares else None,
        "least_share_of_hand": min(shares) if shares else None,
        "verified": len(outcomes),
        "met": outcomes.count("met"),
        "undecided": outcomes.count("undecided"),
        **{f"median_s_to_{name}": _median_s(tuned, name) for name in ("diagnosis", "proof", "recipe")},
    }


def _median_s(rows: list[Row], moment: str) -> float | None:
    found = [row["tune"]["moments_s"][moment] for row in rows if moment in row["tune"]["moments_s"]]
    return statistics.median(found) if found else None


def show(result: dict[str, Any]) -> None:
    heads = (
        "program",
        "s to diagnosis",
        "to first proof",
        "to recipe",
        "stated",
        "verified",
        "hand",
        "share",
    )
    print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for row in sorted(result.get("programs", []), key=lambda row: row["program"]):
        print(f"| {' | '.join(cells(row))} |")
    for name, value in summary(result.get("programs", [])).items():
        print(f"{name}: {value}")


def cells(row: Row) -> list[str]:
    tune = row.get("tune")
    if not is_done(tune):
        why = f"without {', '.join(row['left_out'])}" if row.get("left_out") else ""
        return [
            row["program"],
            *[""] * 3,
            f"failed: {reason_of(tune['failed'])}" if tune else why,
            "",
            "",
            "",
        ]
    at_s = tune["moments_s"]
    stated = ratio(tune["stated"], tune["ci"]) if tune["recipe"] else f"nothing: {tune['verdict']}"
    share = share_of_speed(row)
    return [
        row["program"],
        *(f"{at_s[name]:.0f}" if name in at_s else "-" for name in ("diagnosis", "proof", "recipe")),
        stated,
        told_pairs(row.get("verify")),
        told_pairs(row.get("hand")),
        "" if share is None else f"{share:.2f}",
    ]


def told_pairs(row: Row | None) -> str:
    """Fresh pairs in a few words; `~` where they did not decide."""
    if row is None:
        return ""
    if "failed" in row:
        return f"failed: {reason_of(row['failed'])}"
    if "speedup" not in row:
        return "as published" if row.get("as") else "-"
    mark = {"undecided": "~", "same": "="}.get(row.get("verdict") or "", "")
    return mark + ratio(row["speedup"], row["ci"])


def reason_of(text: str) -> str:
    """The line of a failure that says why: dynotune's error, else the last."""
    lines = text.strip().splitlines() or [""]
    told = next((line.partition("error: ")[2] for line in lines if "error: " in line), lines[-1])
    return told[:160]
