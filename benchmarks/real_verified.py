"""Of the recipes that tunes of real programs end in, how many does `dynotune recipe verify` meet again?

    python benchmarks/real_verified.py [--device cuda] [--recipes 10] [--tunes 20] [--only NAME]… [--lane I/N]
        [--tune-s S] [--budget-s S] [--out FILE] [--work FOLDER] [--no-lock]

Programs take turns, each tune has a seed of its own, and each recipe is verified once, in fresh pairs, right
after its tune. What is in FILE is not done again; nothing is begun that would end after `--budget-s`. Nine of
ten have to be met.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from real_nothing import parser_of

from lab.provenance import RESULTS
from lab.result_file import opened, read
from lab.tuning.idle import tunes_of
from lab.tuning.parts import GRACE_S, Row, Setup, do, estimate_s, is_done, tune_budget_s, tuned
from lab.tuning.programs import PROGRAMS, Program, folder_of
from lab.tuning.rows import ratio

USUAL = ("starved", "mlp", "gpt", "bert-padded", "vit")
SHARE_MET = 0.9


def tuned_and_verified(name: str, program: Program, seed: int, setup: Setup) -> Row:
    budget_s = tune_budget_s(program, setup)
    words = ["tune", "--allow", "numerics", "--budget", f"{budget_s:.0f}s", "--seed", str(seed)]
    tune = tuned(words, program, folder_of(program, setup.work), setup, budget_s + 2 * GRACE_S, name)
    row = {"tune": tune, "seed": seed}
    if is_done(tune) and tune["recipe"]:
        row["verify"] = do("verify", program, row, setup)
    tune.pop("recipe_toml", None)
    return row


def summary(tunes: dict[str, Row]) -> Row:
    verified = [row["verify"] for row in tunes.values() if is_done(row.get("verify"))]
    outcomes = [row["outcome"] for row in verified]
    return {
        "tunes": len(tunes),
        "verified": len(verified),
        **{outcome: outcomes.count(outcome) for outcome in ("met", "not-met", "undecided")},
        "kept": bool(verified) and outcomes.count("met") >= SHARE_MET * len(verified),
    }


def show(result: dict[str, Any]) -> None:
    print("\n| tune | recipe | stated | again | |\n| --- | --- | --- | --- | --- |")
    for name, row in sorted(result["tunes"].items()):
        tune, verify = row["tune"], row.get("verify", {})
        if not is_done(tune):
            print(f"| {name} | failed | {tune['failed'].strip().splitlines()[-1][:80]} | | |")
            continue
        again = verify.get("failed") or ratio(verify.get("speedup"), verify.get("ci"))
        stated = ratio(tune["stated"], tune["ci"])
        print(
            f"| {name} | {' '.join(tune['recipe']) or 'none'} | {stated} | {again} | "
            f"{verify.get('outcome', '')} |"
        )
    found = result["summary"]
    print(f"{found['met']} of {found['verified']} recipes were met again")


def main() -> None:
    parser = parser_of(__doc__, USUAL)
    parser.add_argument("--recipes", type=int, default=10, help="enough")
    given = parser.parse_args()
    until_s = time.monotonic() + given.budget_s
    out = given.out or RESULTS / f"real_verified_{given.device}.json"
    setup = Setup(given.device, given.work.absolute(), lock=not given.no_lock, tune_s=given.tune_s)
    lane, lanes = map(int, given.lane.split("/"))
    programs = [one for one in PROGRAMS if one.name in (given.only or USUAL) and not one.missing()]
    for name, (program, seed) in list(tunes_of(programs, given.tunes).items())[lane::lanes]:
        result = read(out)
        if name in result.get("tunes", {}):
            continue
        if result.get("summary", {}).get("verified", 0) >= given.recipes:
            break
        needed_s = sum(estimate_s(kind, program, {}, setup) + GRACE_S for kind in ("tune", "verify"))
        if time.monotonic() + needed_s > until_s:
            break
        row = tuned_and_verified(name, program, seed, setup)
        with opened(out) as result:
            tunes = result.setdefault("tunes", {})
            tunes[name] = {**row, "began": datetime.now(UTC).isoformat(timespec="seconds")}
            result["summary"] = summary(tunes)
        print(f"{name}: {row['tune'].get('verdict')}; {row.get('verify', {}).get('outcome')}", flush=True)
    result = read(out)
    if "tunes" in result:
        show(result)


if __name__ == "__main__":
    main()
