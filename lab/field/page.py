"""The page of the field: what its results say, first how often, how fast, how far from the hand, and where it
loses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.field.rows import GAIN, cells, hands_gain, reason_of, share_of_gain, share_of_speed, summary
from lab.tuning.parts import PEERS, Row, is_done
from lab.tuning.rows import ratio

PLACES = {"cuda": "on a GPU", "cpu": "on CPU cores"}
NEAR = 0.97
"""Of the hand's speed: from here on nothing is lost to it."""
HEADS = (
    "program",
    "s to diagnosis",
    "s to first proof",
    "s to recipe",
    "stated",
    "verified",
    "informed hand",
    "of its speed",
    "of its gain",
    "losses",
)
NOTE = """A row is one public program, at one revision, unchanged, with data that are made up
(`python -m benchmarks.field`; programs, revisions and hands in `lab/field`). `dynotune tune` has no option
but its budget. "Verified" is `recipe verify`, and "informed hand" is the hand against the program as
published, both in fresh pairs; "of its speed" is the recipe's speed over the hand's. "Of its gain" stands
where the hand gains 5% or more. `~` marks what its pairs did not decide, `=` what they found to be the same.
"Losses" are those that the program prints: how far the recipe's are from the program's own at the same step,
and how far the latter are from each other between runs; `same` is 5%, or twice its own.
`make field` generates this page from the results."""
EARLIER = "As first run: [result](../../benchmarks/results/{first}). What went wrong there was mended"


def page(results: Sequence[Path], power: Path | None) -> str:
    """Return the page of the results that are there."""
    found = [(file, json.loads(file.read_text())) for file in results if file.is_file()]
    rows = [row for _, result in found for row in result.get("programs", [])]
    lines = ["# The field: public programs, an informed hand, and other tools\n", first_line(rows), "", NOTE]
    for file, result in found:
        lines += _of_device(file, result)
    lines += _peers(rows)
    if power is not None and power.is_file():
        lines += _power(power, json.loads(power.read_text()))
    return "\n".join(lines).rstrip() + "\n"


def first_line(rows: Sequence[Row]) -> str:
    """How often, how fast, how far from the hand, and where we lose: one sentence for each device."""
    said = []
    for device in dict.fromkeys(row["device"] for row in rows):
        mine = [row for row in rows if row["device"] == device]
        counts = summary(mine)
        if not counts["tuned"]:
            said.append(f"Nothing was tuned {PLACES[device]} yet.")
            continue
        place = PLACES[device]
        said.append(f"**{place[0].upper()}{place[1:]}**: {_counted(counts)} {_lost(mine)}".rstrip())
    return "\n\n".join(said) or "Nothing was measured yet."


def _counted(counts: Row) -> str:
    often = (
        f"`tune` proved a recipe for {counts['with_a_recipe']} of "
        f"{_programs(counts['tuned'] + counts['failed'])}. "
    )
    if counts["hand_measured"]:
        often += (
            f"An informed hand was measured in {counts['hand_measured']} and gains 5% or more in "
            f"{counts['hand_gains']}, of which {counts['recipe_where_hand_gains']} have a recipe."
        )
    else:
        often += "How much an informed hand gains was not measured."
    times = [
        f"{name} {counts[f'median_s_to_{key}']:.0f} s"
        for name, key in (("diagnosis", "diagnosis"), ("first proof", "proof"), ("recipe", "recipe"))
        if counts[f"median_s_to_{key}"] is not None
    ]
    fast = f" Medians: {', '.join(times)}." if times else ""
    far = ""
    if counts["median_share_of_hand"] is not None:
        far = (
            f" The hand's speed is reached to {counts['median_share_of_hand']:.0%} in the median and "
            f"{counts['least_share_of_hand']:.0%} in the worst."
        )
    met = ""
    if counts["verified"]:
        open_ = f", {counts['undecided']} undecided" if counts["undecided"] else ""
        met = f" Verified: {_recipes(counts['verified'])}; {counts['met']} met again{open_}."
    return often + fast + far + met


def _recipes(num: int) -> str:
    return "1 recipe" if num == 1 else f"{num} recipes"


def _programs(num: int) -> str:
    return "1 program" if num == 1 else f"{num} programs"


def _lost(rows: Sequence[Row]) -> str:
    lost = [
        f"{row['program']} ({share:.0%} of the hand)"
        for row in sorted(rows, key=lambda row: share_of_speed(row) or 1.0)
        if (share := share_of_speed(row)) is not None and share < NEAR and (hands_gain(row) or 1.0) >= GAIN
    ]
    slower = [row["program"] for row in rows if (row.get("verify") or {}).get("verdict") == "slower"]
    failed = [row["program"] for row in rows if row.get("tune") and not is_done(row["tune"])]
    known = any(share_of_speed(row) is not None for row in rows)
    none = "We lose to the hand in none that was measured." if known else ""
    told = f"We lose in: {', '.join(lost)}." if lost else none
    told += f" Slower than as published: {', '.join(slower)}." if slower else ""
    return told + (f" `tune` failed in: {', '.join(failed)}." if failed else "")


def _of_device(file: Path, result: dict[str, Any]) -> list[str]:
    rows = sorted(result.get("programs", []), key=lambda row: str(row["program"]))
    hardware, versions = result.get("hardware", {}), result.get("versions", {})
    device = next((row["device"] for row in rows), "cpu")
    on = hardware.get("gpu.name") if device == "cuda" else hardware.get("host.cpu")
    # A page lies in docs/reference.
    where = f"[Result](../../benchmarks/results/{file.name}): {on}, torch {versions.get('torch', '?')}."
    place = PLACES[device]
    lines = [f"\n## {place[0].upper()}{place[1:]}\n", where]
    lines += _earlier(file, device, result)
    if note := result.get("note"):
        lines += ["", note]
    lines += ["", _row(HEADS), "| --- " * len(HEADS) + "|"]
    lines += [
        _row([*cells(row), _percent(share_of_gain(row)), _losses(row)]) for row in rows if row.get("tune")
    ]
    reasons = list(_reasons(rows))
    if reasons:
        lines += ["\nWithout an answer, and why:\n", *(f"- {reason}" for reason in reasons)]
    return lines


def _earlier(file: Path, device: str, result: dict[str, Any]) -> Iterator[str]:
    """Yield what is said of earlier runs, if their results are kept."""
    first, *later = (file.with_stem(f"field_{which}_{device}") for which in ("first", "second", "third"))
    if not first.is_file():
        return
    before = json.loads(first.read_text())
    kernels = [one.get("hardware", {}).get("host.kernel") for one in (before, result)]
    elsewhere = ", on another machine" if kernels[0] != kernels[1] else ""
    links = [f"[result](../../benchmarks/results/{one.name}), " for one in later if one.is_file()]
    told = f": {''.join(links)}and" if links else ","
    yield ""
    yield f"{EARLIER.format(first=first.name)}, and tuned anew{told} as told here{elsewhere}."


def _losses(row: Row) -> str:
    found = (row.get("verify") or {}).get("losses")
    if not found:
        return ""
    return f"{'same' if found['ok'] else '**other**'}: {found['difference']:.1%}, own {found['own']:.1%}"


def _reasons(rows: Iterable[Row]) -> Iterable[str]:
    for row in rows:
        if row.get("left_out"):
            yield f"{row['program']} was left out, without {', '.join(row['left_out'])}"
        for kind in ("tune", "verify", "hand", "informed"):
            part = row.get(kind) or {}
            if "failed" in part:
                yield f"{row['program']}, {kind}: {reason_of(part['failed'])}"
            elif kind == "tune" and part and not part["recipe"]:
                yield f"{row['program']}: {part['verdict']}"


def _peers(rows: Sequence[Row]) -> list[str]:
    asked = [row for row in rows if any(tool in row for tool in PEERS)]
    if not asked:
        return []
    heads = ("program", "tool", "chooses", "claims", "seconds", "what it says", "our recipe against that")
    lines = ["\n## Other tools on the same commands\n", _row(heads), "| --- " * len(heads) + "|"]
    for row in asked:
        for tool in PEERS:
            if tool in row:
                lines.append(_row([row["program"], tool, *_peer(row, tool)]))
    return lines


def _peer(row: Row, tool: str) -> list[str]:
    part = row[tool]
    if reason := part.get("cannot") or part.get("failed"):
        return ["cannot", "", "", reason_of(reason), ""]
    pairs = row.get(f"{tool}-pairs") or {}
    against = ratio(pairs["speedup"], pairs["ci"]) if pairs.get("speedup") else pairs.get("as", "")
    claims = f"{part['claimed']:.2f}×" if part.get("claimed") else ""
    says = " ".join(str(part.get("says") or part.get("no_answer") or "").split())[:160]
    return [
        part.get("chosen") or "nothing",
        claims,
        f"{part.get('took_s', 0):.0f}",
        says.replace("|", "/"),
        against,
    ]


def _power(file: Path, result: dict[str, Any]) -> list[str]:
    rows = result["protocols"]
    efforts = list(dict.fromkeys((row["noise"], row["speedup"]) for row in rows))
    protocols = list(dict.fromkeys(row["protocol"] for row in rows))
    known = {(row["noise"], row["speedup"], row["protocol"]): row for row in rows}
    lines = [
        "\n## Power and false wins of the protocols\n",
        f"The share of verdicts `faster`, simulated ([result](../../benchmarks/results/{file.name}),",
        f"{result['num']:,} comparisons a cell). Where the true gain is none, each is a false win.",
        "`benchmarks/field/power.py` says how each judges.",
        "`slower` is less than 3% in every cell.\n" if _seldom_slower(rows) else "\n",
        "![Share of false wins by tool, at a noise of 5%](../images/chart-false-wins.svg)\n",
        _row(["noise of a pair", "true gain", *protocols]),
        "| --- " * (2 + len(protocols)) + "|",
    ]
    for noise, speedup in efforts:
        shares = [f"{known[noise, speedup, one]['faster']:.1%}" for one in protocols]
        lines.append(_row([noise, "none" if speedup == 1 else f"+{speedup - 1:.0%}", *shares]))
    starts = [
        f"{one} {max(row['mean_starts'] for row in rows if row['protocol'] == one):.0f}" for one in protocols
    ]
    return [
        *lines,
        "",
        f"Mean starts of the command, in the row that takes most: {', '.join(starts)}.",
        _where_others_find_more(known),
    ]


def _where_others_find_more(known: dict[tuple[str, float, str], Row]) -> str:
    """By the two tools that test a gain, at equal numbers of starts."""
    lost = []
    for (noise, speedup, protocol), row in known.items():
        num = protocol.removeprefix("train-doctor, ")
        ours = known.get((noise, speedup, f"dynotune, at most {num}"))
        if protocol != num and ours and speedup > 1 and row["faster"] > ours["faster"] + 0.01:
            lost.append(f"+{speedup - 1:.0%}, {noise}, {num}")
    return f"At equal starts train-doctor finds more at: {'; '.join(lost)}." if lost else ""


def _seldom_slower(rows: Sequence[Row]) -> bool:
    return all(row["slower"] < 0.03 for row in rows)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
