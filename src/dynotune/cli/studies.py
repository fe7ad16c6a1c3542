"""`dynotune studies`: list the studies in a database."""

from dynotune.cli import answers
from dynotune.cli.options import Json, Storage, check_json, opened

COLUMNS = ("study", "state", "runs", "workers", "command", "verdict")


def studies(storage: Storage = None, json: Json = None) -> None:
    from rich.table import Table

    from dynotune.report import console
    from dynotune.text import words

    check_json(json)
    rows = []
    with opened(storage, reads_only=True) as store:
        for study, num_workers in store.studies():
            state = "finished" if study.finished else "running" if num_workers else "stopped"
            command = words.command(study.run.command)
            rows.append((study.name, state, len(study.trials), num_workers, command, study.verdict))
    if json is not None:
        answers.write_json([dict(zip(COLUMNS, row, strict=True)) for row in rows], json)
    if json != "-":
        table = Table(*COLUMNS, box=None)
        for row in rows:
            table.add_row(*(words.plain(str(value)) for value in row))
        console().print(table)
