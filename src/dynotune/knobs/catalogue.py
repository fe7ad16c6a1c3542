"""Find knobs, and turn text into settings."""

import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from dynotune.schema import redaction
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import AllocConf, Argument, Env, Knob, Scalar, is_of_launch
from dynotune.schema.setting import UNSET, Setting

LARGEST = 2**63 - 1
"""Largest number in settings, as in records and recipes."""
# Variables that dynotune itself sets in order to reach the program.
_OURS = ("DYNOTUNE_RUN", "PYTHONPATH")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class Condition(NamedTuple):
    """A test of one fact; `unless` states why a knob does not apply if the test fails."""

    fact: str
    holds: Callable[[object], bool]
    unless: str


def version_of(fact: object) -> tuple[int, ...]:
    """Return the leading numbers of a version: "2.13.0+cu130" is (2, 13, 0), "9.0" is (9, 0)."""
    match = re.match(r"\d+(\.\d+)*", str(fact))
    return tuple(int(part) for part in match[0].split(".")) if match else ()


CONDITIONS = {
    "gpu": Condition("gpu.count", lambda count: count != 0, "it acts on the GPU, and none was found here"),
    "linux": Condition(
        "platform", lambda name: str(name).lower().startswith("linux"), "preloading a library works on Linux only"
    ),
    "torch 2.6": Condition(
        "torch.version",
        lambda version: version_of(version) >= (2, 6),
        "the DataLoader of torch before 2.6 cannot deliver out of order",
    ),
    "compute capability 8.0": Condition(
        "gpu.compute_capability",
        lambda capability: version_of(capability) >= (8, 0),
        "TF32 needs a GPU of compute capability 8.0 (Ampere) or newer",
    ),
}
"""Conditions that a knob may put on the machine, by their name in the catalogue."""


@functools.cache
def all_knobs() -> tuple[Knob, ...]:
    """Return the catalogue in the order of its families; `env.NAME` and `arg.NAME` stand for any of their kind."""
    entries = tomllib.loads(files(__package__).joinpath("catalogue.toml").read_text("utf-8"))
    return tuple(_made(knob_id, **entry) for knob_id, entry in entries.items())


def _made(knob_id: str, only_on: str = "", **entry: Any) -> Knob:
    """Make the knob of an entry; `only_on` is the name of one of the `CONDITIONS`."""
    if only_on:
        fact, holds, unless = CONDITIONS[only_on]
        entry |= {"needs": [fact], "applies": lambda facts: holds(facts[fact]), "unless": unless}
    return msgspec.convert({"id": knob_id, **entry}, Knob)


def _named(general: str, name: str) -> Knob:
    """Make the knob of one variable or placeholder from the entry for all of them."""
    knob = _by_id()[f"{general}.NAME"]
    site = Argument(name) if general == "arg" else Env(name)
    return msgspec.structs.replace(knob, id=f"{general}.{name}", site=site, doc=knob.doc.replace("NAME", name))


@functools.cache
def _by_id() -> dict[str, Knob]:
    return {knob.id: knob for knob in all_knobs()}


def get(knob_id: str) -> Knob:
    """Return the knob with this id; `env.` with any variable's name is a knob, and `arg.` with any placeholder's name.

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
    near = difflib.get_close_matches(knob_id, known, n=3, cutoff=0.5)
    # `num_workers` and `workers` mean loader.num_workers, however many letters differ.
    near += [name for name in known if name not in near and knob_id and knob_id in name.partition(".")[2]]
    if not near:
        return "`dynotune knobs` lists them. An environment variable is env.NAME."
    return f"Did you mean {' or '.join(near[:3])}? `dynotune knobs` lists them all."


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


def parse(text: str) -> Setting:
    """Read `knob=value` as a setting with a value of the knob's type.

    Raises UsageError: no `=`, no such knob, or a value that the knob refuses; the message lists the accepted values.
    """
    knob_id, equals, value = text.partition("=")
    knob_id = knob_id.strip()
    if not equals:
        knob = get(knob_id)
        raise UsageError(f"{text!r} names a knob but no value.", hint=f"Write {knob_id}=VALUE: {_allowed(knob)}.")
    knob = get(knob_id)
    if isinstance(knob.site, Env):
        # An environment variable's value is taken literally, spaces included.
        if "\0" in value:
            raise UsageError(f"The value of {knob_id} contains a NUL character, which is not possible in a variable.")
        _refuse_unreadable(knob, value)
        return Setting(knob_id, value)
    if isinstance(knob.site, Argument):
        # A placeholder's text is taken literally, spaces included; if it is empty, the argument is left out.
        return Setting(knob_id, value)
    return Setting(knob_id, _typed(knob, value.strip()))


def parse_all(texts: Iterable[str]) -> list[Setting]:
    """Read the settings of one arm, at most one for each knob, and hide secrets among their values from now on.

    Raises UsageError: as `parse`, or two settings of one knob differ.
    """
    chosen: dict[str, Setting] = {}
    for text in texts:
        setting = parse(text)
        if chosen.setdefault(setting.knob, setting) != setting:
            other = chosen[setting.knob]
            raise UsageError(f"{other} and {setting} both set {setting.knob}.", hint="Give one of them.")
    redaction.learn({}, settings=chosen.values())
    return list(chosen.values())


def _refuse_unreadable(knob: Knob, text: str) -> None:
    """Refuse a value that readers of a known variable would take for another value, or for none."""
    if text == UNSET or (knob.type == "str" and not knob.values):
        return
    value = _converted(knob.type, text)
    if value is None or _is_beyond(knob, value) or (knob.values and value not in knob.values):
        raise UsageError(f"{knob.id} cannot be {text!r}.", hint=f"It takes {_allowed(knob)}.")


def _is_beyond(knob: Knob, value: Scalar) -> bool:
    if not isinstance(value, int | float):
        return False
    if abs(value) > LARGEST:
        return True
    return (knob.minimum is not None and value < knob.minimum) or (knob.maximum is not None and value > knob.maximum)


def _typed(knob: Knob, text: str) -> Scalar:
    if text == UNSET:
        raise UsageError(
            f"{UNSET} takes environment variables away; {knob.id} is not one.",
            hint=f"{knob.id} takes {_allowed(knob)}.",
        )
    value = _converted(knob.type, text)
    if isinstance(value, str) and knob.values:
        value = next((known for known in knob.values if str(known).lower() == value.lower()), None)
    if isinstance(knob.site, AllocConf) and isinstance(value, str) and not _is_one_value(value):
        value = None
    if value is None or _is_beyond(knob, value) or (knob.values and value not in knob.values):
        raise UsageError(f"{knob.id} cannot be {text!r}.", hint=f"It takes {_allowed(knob)}.")
    return value


def _converted(type_: str, text: str) -> Scalar | None:
    """Convert the text; None if it is not of the type."""
    if type_ == "bool":
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else None
    if type_ == "int":
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,300}", text) else None  # as many digits as a float has
    if type_ == "float":
        return float(text) if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text, re.I) else None
    return text or None


def _is_one_value(text: str) -> bool:
    """Tell whether the text is a single value: a value of an allocator key must not add further keys."""
    return re.fullmatch(r"[^\s,:\[\]]+|\[[^\s\[\]]+\]", text) is not None


def _allowed(knob: Knob) -> str:
    unset = f", or {UNSET} to take the variable away" if isinstance(knob.site, Env) else ""
    if knob.values:
        return "one of " + ", ".join(str(value) for value in knob.values) + unset
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}[knob.type]
    if isinstance(knob.site, Env) and knob.type == "str":
        return f"any text{unset}"
    if knob.minimum is not None and knob.maximum is not None:
        return f"{words} from {knob.minimum:.0f} to {knob.maximum:.0f}{unset}"
    return f"{words}{unset}" if knob.minimum is None else f"{words}, {knob.minimum:g} or more{unset}"


def check_applies(setting: Setting, facts: Facts) -> None:
    """Refuse a setting that cannot work here. If a fact is not known, the read-back decides later.

    Raises CannotRunHere: the message names what is missing.
    """
    knob = get(setting.knob)
    if "gpu.count" in knob.needs and "torch.cuda" in facts and facts["torch.cuda"] is None:
        raise CannotRunHere(
            f"{setting} cannot work here: the command's torch is built without CUDA.",
            hint="Install a CUDA build of torch in the command's environment, or leave this setting out.",
        )
    _check_package(setting, knob, facts)
    if knob.applies is None or any(_is_unknown(facts, need) for need in knob.needs):
        return
    if not knob.applies(facts):
        found = ", ".join(f"{need} is {facts[need]}" for need in knob.needs)
        raise CannotRunHere(
            f"{setting} cannot work here: {knob.unless} ({found}).",
            hint=f"Leave it out, or run where it applies. `dynotune knobs {knob.id}` says more.",
        )


def _check_package(setting: Setting, knob: Knob, facts: Facts) -> None:
    needed = knob.packages.get(str(setting.value), ())
    if not needed or "python.version" not in facts or _is_unknown(facts, "python.version"):
        return  # the installed packages are not known
    there = [name.removeprefix("package.") for name in facts if name.startswith("package.")]
    if not any(one in (name, f"{name}-headless") for name in needed for one in there):
        raise CannotRunHere(
            f"{setting} cannot work here: {' or '.join(needed)} is not installed in the command's environment.",
            hint="Install it there, or leave this setting out.",
        )


def of_launch(settings: Iterable[Setting]) -> list[Setting]:
    """Return those settings that change the started command, rather than something inside its process."""
    return [setting for setting in settings if is_of_launch(get(setting.knob).site)]


_READ_ONCE = {"process": "it is read when the process starts", "before_cuda": "it is read before CUDA is used"}


def why_not_switched(setting: Setting) -> str:
    """Return why a setting cannot be switched on and off while a program runs; "" if it can.

    Raises UsageError: there is no such knob.
    """
    knob = get(setting.knob)
    return knob.not_switched or _READ_ONCE.get(knob.when, "")


def _is_unknown(facts: Facts, name: str) -> bool:
    return name not in facts or isinstance(facts[name], Unknown)


def caution(setting: Setting, facts: Facts) -> str:
    """Return a warning about a setting that works here but is likely to hurt; "" if there is no such risk."""
    cores = facts.get("host.num_cores")
    if isinstance(cores, bool) or not isinstance(cores, int) or isinstance(setting.value, str):
        return ""
    if setting.knob not in ("loader.num_workers", "host.num_threads") or setting.value <= cores:
        return ""
    what = "workers" if setting.knob == "loader.num_workers" else "threads"
    return f"{setting}: {what} will share cores, since this process may use only {cores}."
