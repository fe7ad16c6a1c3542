"""What `benchmarks/tuning.py` tells of its rows: a part in a few words, a cell of the table, counts and
means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lab.tuning.parts import PEERS, Row, is_done
from lab.tuning.programs import Program


def told(kind: str, row: Row) -> str:
    """A part in a few words."""
    for key in ("failed", "cannot", "no_answer"):
        if row.get(key):
            return f"{key}: {str(row[key]).strip()[-300:]}"
    if kind == "tune":
        return (
            f"{ratio(row['stated'], row['ci'])}  {' '.join(row['recipe']) or 'no recipe'}  "
            f"({row['wall_s']} s)"
        )
    if kind in PEERS:
        claimed = "" if row.get("claimed") is None else f", claims {row['claimed']:.2f}×"
        return f"chooses {row['chosen'] or 'nothing'}{claimed}  ({row['took_s']} s)"
    if kind == "table-tune":
        reached = (
            "no measured arm of the table" if row["share"] is None else f"{row['share']:.1%} of the best"
        )
        return f"{reached} in {row['wall_s'] / row['table_s']:.0%} of the table's time"
    if "as" in row:
        return f"is {row['as']}"
    outcome = f"{row['outcome']}, " if "outcome" in row else ""
    return f"{outcome}{row.get('verdict', '')} {ratio(row.get('speedup'), row.get('ci'))}".strip()


def ratio(speedup: float | None, ci: Sequence[float] | None) -> str:
    if speedup is None:
        return "-"
    return f"{speedup:.2f}×" + (f" [{ci[0]:.2f}, {ci[1]:.2f}]" if ci else "")


def cell(kind: str, rows: dict[str, Row]) -> str:
    """The recipe's speed over what this part compares it with; `~` where it was not decided."""
    row = rows.get(kind)
    if row is None:
        return ""
    if "cannot" in row or "failed" in row:
        return "cannot" if row.get("cannot") else "failed"
    if "as" in row:
        if row["as"] != "written":
            return cell(row["as"], rows)
        return cell("verify", rows) + "ᵂ"
    if row.get("outcome") == "nothing to verify":
        return "1.00×"
    mark = {"undecided": "~", "same": "="}.get(row.get("verdict") or "", "")
    return mark + ratio(row.get("speedup"), row.get("ci"))


def summary(result: dict[str, Any]) -> Row:
    """Counts, and geometric means of what was measured."""
    rows = result.get("programs", {}).values()
    verified = [row["verify"]["outcome"] for row in rows if is_done(row.get("verify"))]
    verified = [outcome for outcome in verified if outcome in _OUTCOMES]
    found: Row = {"verified": len(verified), **{outcome: verified.count(outcome) for outcome in _OUTCOMES}}
    for kind in ("verify", "informed", "autotune-pairs", "slowai-pairs"):
        ratios = [value for row in rows if (value := _value(kind, row)) is not None]
        verdicts = [row[kind].get("verdict") for row in rows if is_done(row.get(kind))]
        found[kind] = {
            "num": len(ratios),
            "mean": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
            "faster": verdicts.count("faster"),
            "slower": verdicts.count("slower"),
        }
    return found


_OUTCOMES = ("met", "not-met", "undecided")


def _value(kind: str, rows: Row) -> float | None:
    row = rows.get(kind, {})
    if row.get("outcome") == "nothing to verify":
        return 1.0
    if "as" in row:
        return _value("verify" if row["as"] == "written" else row["as"], rows)
    return row.get("speedup")


def show(programs: Sequence[Program], result: dict[str, Any]) -> None:
    print("\n| program | recipe | × as written | × informed | × autotune | × slowai | verify |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for program in programs:
        rows = result.get("programs", {}).get(program.name)
        if not rows:
            continue
        tune = rows.get("tune", {})
        recipe = " ".join(tune.get("recipe", [])) or ("none" if is_done(tune or None) else "")
        cells = [cell(kind, rows) for kind in ("verify", "informed", "autotune-pairs", "slowai-pairs")]
        verify = rows.get("verify", {})
        outcome = verify.get("outcome", "") if is_done(verify) else ""
        print(f"| {program.name} | {recipe} | {' | '.join(cells)} | {outcome} |")
    print("~ undecided, = same, ᵂ chose the program as written")
    for name, row in result.get("tables", {}).items():
        chose = " ".join(row.get("recipe", [])) or "-"
        print(f"table of {name}: {told('table-tune', row)}; chose {chose}, best {row.get('best')}")
    found = summary(result)
    print(f"recipe verify: met {found['met']} of {found['verified']}")
