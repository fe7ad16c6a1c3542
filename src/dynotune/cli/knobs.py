"""`dynotune knobs`: list the catalogue of knobs, or explain a single knob."""

import re
from typing import Annotated, Any

import msgspec
import typer

from dynotune import knobs as catalogue
from dynotune.cli.answers import write_json
from dynotune.cli.options import Json


class Catalogue(msgspec.Struct, frozen=True):
    """The catalogue as `--json` writes it: the fields of `schema.knob.Knob` without those that hold code."""

    schema: str = "dynotune.knobs/1"
    knobs: list[dict[str, Any]] = []


def knobs(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Explain this knob, or list the knobs whose texts contain this word."
        ),
    ] = None,
    json: Json = None,
) -> None:
    chosen = tuple(catalogue.all_knobs())
    if id is not None:
        id = f"env.{id}" if re.fullmatch(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+", id) else id
        word = id.lower().replace("_", " ")
        texts = {
            knob.id: f"{knob.id} {knob.doc} {knob.values} {knob.hurts}".lower().replace("_", " ")
            for knob in chosen
        }
        spoken_of = tuple(knob for knob in chosen if word in texts[knob.id])
        chosen = spoken_of if spoken_of and id not in texts else (catalogue.get(id),)
    if json is not None:
        names = [name for name in chosen[0].__struct_fields__ if name != "applies"]
        fields = [{name: msgspec.to_builtins(getattr(knob, name)) for name in names} for knob in chosen]
        write_json(Catalogue(knobs=fields), json)
        return
    from dynotune.report import catalogue as tables
    from dynotune.report import console

    console().print(tables.explanation(chosen[0]) if id and len(chosen) == 1 else tables.table(chosen))
