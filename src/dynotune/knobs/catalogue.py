"""Find knobs in the catalogue."""

import difflib
import functools
import re
from collections.abc import Iterable

import msgspec

from dynotune.knobs.conditions import CONDITIONS
from dynotune.schema.data_file import table
from dynotune.schema.errors import UsageError
from dynotune.schema.knob import Argument, Env, Knob, is_of_launch
from dynotune.schema.setting import Setting

# Variables that dynotune itself sets in order to reach the program.
_OURS = ("DYNOTUNE_RUN", "PYTHONPATH")
# Why a setting cannot be switched, by the time at which it is read.
_READ_ONCE = {
    "process": "it is read when the process starts",
    "before_cuda": "it is read before CUDA is used",
}
_BATCH = ("batch", "batch_size")
"""Words that people type for the size of a batch, which is a placeholder of the command."""


@functools.cache
def all_knobs() -> tuple[Knob, ...]:
    """Return the catalogue in the order of its families.

    `env.NAME` and `arg.NAME` stand for any of their kind.
    """
    entries = table(__package__, "catalogue.toml", dict[str, Knob])
    return tuple(_whole(knob_id, entry) for knob_id, entry in entries.items())


def _whole(knob_id: str, entry: Knob) -> Knob:
    """Return the knob of an entry, with its id and its condition."""
    knob = msgspec.structs.replace(entry, id=knob_id)
    if not knob.only_on:
        return knob
    fact, holds, unless = CONDITIONS[knob.only_on]
    return msgspec.structs.replace(
        knob, needs=(fact,), applies=lambda facts: holds(facts[fact]), unless=unless
    )


def _named(general: str, name: str) -> Knob:
    """Make the knob of one variable or placeholder from the entry for all of them."""
    knob = _by_id()[f"{general}.NAME"]
    site = Argument(name) if general == "arg" else Env(name)
    doc = knob.doc.replace("NAME", name)
    return msgspec.structs.replace(knob, id=f"{general}.{name}", site=site, doc=doc)


@functools.cache
def _by_id() -> dict[str, Knob]:
    return {knob.id: knob for knob in all_knobs()}


def get(knob_id: str) -> Knob:
    """Return the knob with this id.

    `env.` with any variable's name is a knob, and so is `arg.` with any placeholder's name.

    Raises UsageError: no knob has this id; the hint lists the nearest ids.
    """
    if knob_id in _by_id():
        return _by_id()[knob_id]
    general, _, name = knob_id.partition(".")
    if general == "env":
        return _environment_knob(name)
    if general == "arg":
        return _placeholder(name)
    raise UsageError(f"There is no knob {knob_id!r}.", hint=_nearest(knob_id, list(_by_id())))


def _nearest(knob_id: str, known: list[str]) -> str:
    if re.fullmatch(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+", knob_id):
        return f"An environment variable is env.NAME: env.{knob_id}=VALUE, or env.{knob_id}=@unset."
    if meant := _meant(knob_id.lower()):
        return f"Did you mean {meant}? `dynotune knobs` lists them all."
    near = difflib.get_close_matches(knob_id, known, n=3, cutoff=0.5)
    # `num_workers` and `workers` mean loader.num_workers, however many letters differ.
    near += [name for name in known if name not in near and knob_id and knob_id in name.partition(".")[2]]
    if not near:
        return "`dynotune knobs` lists them. An environment variable is env.NAME."
    return f"Did you mean {' or '.join(near[:3])}? `dynotune knobs` lists them all."


def _meant(word: str) -> str:
    """Return the setting that people mean by a word; "" if none has the word."""
    if word in _BATCH:
        return "arg.batch=64, with {batch} in the command"
    knob = next((knob for knob in all_knobs() if word in knob.words), None)
    return "" if knob is None else str(Setting(knob.id, knob.words[word]))


def _environment_knob(name: str) -> Knob:
    if not name or "\0" in name or any(char.isspace() for char in name):
        raise UsageError(f"{name!r} cannot name an environment variable.", hint="Write env.NAME=value.")
    if name in _OURS:
        raise UsageError(
            f"env.{name} cannot be a setting: dynotune sets {name} itself to reach the program.",
            hint=f"Set {name} in your shell; the command inherits it.",
        )
    return _named("env", name)


def _placeholder(name: str) -> Knob:
    if not name.isidentifier() or name == "run_dir":
        raise UsageError(
            f"{name!r} cannot name a placeholder of the command.",
            hint="Write arg.NAME=value, with {NAME} in the command.",
        )
    return _named("arg", name)


def of_launch(settings: Iterable[Setting]) -> list[Setting]:
    """Return those settings that change the started command, rather than something inside its process."""
    return [setting for setting in settings if is_of_launch(get(setting.knob).site)]


def why_not_switched(setting: Setting) -> str:
    """Return why a setting cannot be switched on and off while a program runs; "" if it can.

    Raises UsageError: there is no such knob.
    """
    knob = get(setting.knob)
    return knob.not_switched or _READ_ONCE.get(knob.when, "")
