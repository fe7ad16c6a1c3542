"""The settings that were proved, with their proofs and the facts they were proved under."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from dynotune.schema.document import check_schema
from dynotune.schema.errors import RecordError
from dynotune.schema.knob import Effect, Scalar


class Header(msgspec.Struct, frozen=True):
    """Where a recipe comes from."""

    schema: str
    created: str = ""
    command: list[str] = []


class Proof(msgspec.Struct, frozen=True):
    """The comparison that earned a setting its place."""

    knob: str
    speedup: float
    ci: tuple[float, float]
    num_pairs: int
    effect: Effect


class Recipe(msgspec.Struct, frozen=True):
    """`recipe.toml`.

    Args:
        settings: knob id to value, as written.
        facts: what held where it was proved (`gpu`, `driver`, `torch`, …).
    """

    recipe: Header
    settings: dict[str, Scalar] = {}
    proof: list[Proof] = []
    facts: dict[str, Scalar] = {}


SCHEMA = "dynotune.recipe/1"


def read(path: Path) -> Recipe:
    """Read and validate a recipe. It is untrusted input: values are checked against the catalogue later.

    Raises:
        RecordError: missing, not TOML, or not a recipe of a version we know.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path} is not TOML: {error}.") from error
    head = table.get("recipe")
    # First of all: what a newer version holds need not fit ours.
    check_schema(str(head.get("schema", "")) if isinstance(head, dict) else "", SCHEMA, name=str(path))
    try:
        return msgspec.convert(table, Recipe)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path} is not a recipe: {error}.") from error
