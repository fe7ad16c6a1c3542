"""`dynotune studies`: the studies in a database."""

from __future__ import annotations

from dynotune.cli import answers
from dynotune.cli.options import Json, Storage, check_json, opened



def studies(storage: Storage = None, json: Json = None) -> None:
    from rich.table import Table

    from dynotune.report import console
    from dynotune.text import words

    check_json(json)
    with opened(storage) as store:
        found = [
            {
                "study": study.name,
                "state": "finished" if study.finished else "running" if num_workers else "stopped",
                "runs": num_trials,
                "workers": num_workers,
                "command": words.command(study.run.command),
                "verdict": study.verdict,
            }
            for study, num_trials, num_workers in store.studies()
        ]
    if json is not None:
        answers.write_json(found, json)
    if json != "-":
        table = Table(*(found[0] if found else ["There is no study yet."]), box=None)
        for one in found:
            table.add_row(*(words.plain(str(value)) for value in one.values()))
        console().print(table)
