"""`dynotune knobs`: the catalogue, or one knob explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dynotune import knobs as catalogue
from dynotune.cli.options import Json, write_json

if TYPE_CHECKING:
    from dynotune.schema.knob import Knob


class Catalogue(msgspec.Struct, frozen=True):
    """What `--json` writes: the fields of `schema.knob.Knob`, without its code."""

    schema: str = "dynotune.knobs/1"
    knobs: list[dict[str, Any]] = []


HELP = "What can be set: the values, the default, what it may change besides speed, and the source."


def knobs(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="Explain this knob; all are listed without.")] = None,
    json: Json = None,
) -> None:
    chosen = tuple(catalogue.all_knobs()) if id is None else (catalogue.get(id),)
    if json is not None:
        write_json(Catalogue(knobs=[_fields(knob) for knob in chosen]), json)
        return
    from dynotune.report import catalogue as tables
    from dynotune.report import console

    console().print(tables.table(chosen) if id is None else tables.explanation(chosen[0]))


def _fields(knob: Knob) -> dict[str, Any]:
    fields = {name: getattr(knob, name) for name in knob.__struct_fields__ if name != "applies"}
    return {name: msgspec.to_builtins(value) for name, value in fields.items()}
