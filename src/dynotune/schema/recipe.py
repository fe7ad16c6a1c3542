"""A recipe: settings that were proved, with the proofs and the facts of the machine that proved them."""

import errno
import math
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from dynotune.schema import atomic, document, untrusted
from dynotune.schema.comparison import Comparison
from dynotune.schema.document import check_schema, in_words
from dynotune.schema.errors import RecordError, UsageError, may_fail
from dynotune.schema.knob import Effect, Scalar
from dynotune.schema.run import Caches, Objective, Phase
from dynotune.schema.setting import Setting
from dynotune.schema.toml_text import argument, arguments, commented, quoted, value

SCHEMA = "dynotune.recipe/2"
LARGEST_BYTES = 1 << 18
"""Largest accepted file in bytes: many times the size of a usual recipe."""
# Python's reader takes minutes over a key of a hundred thousand parts.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')\s*+\.\s*+){100}""")
EFFECTS: dict[str, str] = {
    "exact": "the results stay the same",
    "sampling": "the same samples in the same order, other random draws",
    "numerics": "results may differ by rounding",
    "semantics": "it may change what the program computes",
    "system": "it changes the machine; dynotune never applies it",
}
LABELS = {
    "gpu_count": "number of GPUs",
    "gpu": "GPU",
    "driver": "driver",
    "torch": "torch",
    "cuda": "CUDA of torch",
    "python": "Python",
    "cpu": "processor",
    "num_cores": "number of usable cores",
}
"""Labels of the facts in a recipe, as text."""
_UNTOLD: tuple[object, ...] = (None, "", [], False)
Outcome = Literal["met", "not-met", "undecided"]


class Header(msgspec.Struct, frozen=True):
    """Source of a recipe, and the gain of all its settings together.

    Args:
        speedup, ci, num_pairs: result of the confirmation of all settings against the unchanged command. If
            the recipe extends another recipe, the product of both recipes' gains, since no pairs measured all
            settings together.
        within: whether the pairs are blocks within one process, because time was too short for fresh
            processes.
        num_blocks: number of blocks within one process that state the gain together with the pairs; 0 for
            pairs alone.
        baseline: launch settings of the baseline, as text: a placeholder needs a value in the baseline, too.
    """

    schema: str
    created: str = ""
    command: list[str] = []
    objective: Objective = "throughput"
    speedup: float | None = None
    ci: tuple[float, float] | None = None
    num_pairs: int | None = None
    step_function: str | None = None
    phase: Phase | None = None
    caches: Caches = "warm"
    study: str = ""
    baseline: list[str] = []
    within: bool = False
    num_blocks: int = 0


class Proof(msgspec.Struct, frozen=True):
    """The comparison that proved a setting.

    Args:
        num_pairs: number of pairs of runs; a block of an ablation contains one such pair.
        left_out_too: knobs that were left out together with the setting, since they are meaningless without
            it.
    """

    knob: str
    speedup: float
    ci: tuple[float, float]
    num_pairs: int
    effect: Effect
    by: Literal["ablation", "confirmation"] = "confirmation"
    value: Scalar | None = None
    left_out_too: list[str] = []


class Recipe(msgspec.Struct, frozen=True):
    """Document `recipe.toml`.

    Args:
        settings: knob id to value, as written.
        facts: facts about the machine of the proof (`gpu`, `driver`, `torch`, …), without unknown facts.
        about: by knob, a text on the knob and its effect, which is written as a comment and ignored by
            `read`.
    """

    recipe: Header
    settings: dict[str, Scalar] = {}
    proof: list[Proof] = []
    facts: dict[str, Scalar] = {}
    about: dict[str, str] = {}


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `dynotune recipe verify --json`."""

    schema: str = "dynotune.verification/2"
    recipe: str
    stated: float | None
    stated_ci: tuple[float, float] | None
    differs: list[str]
    outcome: Outcome
    reason: str
    comparison: Comparison


def read(path: Path) -> Recipe:
    """Read and validate a recipe. As it is untrusted, its values are later checked against the catalogue.

    Raises RecordError: the file is missing, not TOML, or not a recipe of a known version.
    """
    try:
        raw = untrusted.read(path, LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise RecordError(
                f"{path} is too large to be a recipe: more than {LARGEST_BYTES >> 10} KiB."
            ) from error
        hint = "dynotune tune -- COMMAND writes one, recipe.toml."
        raise RecordError(f"Cannot read {path}: {error.strerror}.", hint=hint) from error
    except ValueError as error:
        raise RecordError(f"Cannot read {str(path)!r}: {error}.") from error
    try:
        # Allows the byte order mark that some editors write. A number of thousands of digits is a plain
        # ValueError.
        content = raw.decode("utf-8-sig")
        if _LONG_KEY.search(content):
            raise RecordError(f"{path} is not a recipe: it has a key of more than 100 parts.")
        table = tomllib.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not TOML: {in_words(error)}.") from error
    return _recipe(table, str(path))


def _recipe(table: dict[str, Any], name: str) -> Recipe:
    head = table.get("recipe")
    # Checked first: a newer version may have other fields.
    found = str(head.get("schema", ""))[:100] if isinstance(head, dict) else ""
    check_schema(found if found.isprintable() else repr(found), SCHEMA, name=name)
    known = ("recipe", "settings", "proof", "facts")
    if strange := [key for key in table if key not in known]:
        raise RecordError(
            f"{name} is not a recipe: it has {strange[0][:100]!r} beside {', '.join(known)}.",
            hint='Settings stand below [settings], each as "knob" = value.',
        )
    try:
        if isinstance(table.get("settings"), dict):
            table = {**table, "settings": _flat(table["settings"])}
        if isinstance(head, dict) and isinstance(command := head.get("command"), list):
            table = {**table, "recipe": {**head, "command": list(map(argument, command))}}
        recipe = msgspec.convert(table, Recipe)
        _check_numbers(recipe)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name} is not a recipe: {in_words(error)}.") from error
    return recipe


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a table: TOML reads a handwritten `loader.num_workers = 4` without quotes as a table in a
    table."""
    flat: dict[str, Any] = {}
    for key, entry in settings.items():
        inner = _flat(entry, f"{prefix}{key}.") if isinstance(entry, dict) else {prefix + key: entry}
        if twice := flat.keys() & inner.keys():
            raise msgspec.ValidationError(f"{min(twice)[:100]!r} is set twice")
        flat |= inner
    return flat


def _check_numbers(recipe: Recipe) -> None:
    """Refuse nan and inf, which TOML allows, but which no proof, setting or fact can have."""
    for name, told in (*recipe.settings.items(), *recipe.facts.items()):
        if isinstance(told, float) and not math.isfinite(told):
            raise msgspec.ValidationError(f"{name[:100]!r} is not a number")
    head = recipe.recipe
    stated = [("[recipe]", head.speedup, head.ci, head.num_pairs)]
    stated += [
        (f"the proof of {proof.knob[:100]!r}", proof.speedup, proof.ci, proof.num_pairs)
        for proof in recipe.proof
    ]
    for where, speedup, ci, num_pairs in stated:
        numbers = [*([] if speedup is None else [speedup]), *(ci or ())]
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise msgspec.ValidationError(f"in {where}, a speed-up must be a number above 0")
        if ci is not None and (ci[0] > ci[1] or (speedup is not None and not ci[0] <= speedup <= ci[1])):
            raise msgspec.ValidationError(f"in {where}, ci must be [low, high] around the speed-up")
        if num_pairs is not None and num_pairs < 0:
            raise msgspec.ValidationError(f"in {where}, num_pairs is below 0")


def write(path: Path, recipe: Recipe) -> None:
    """Write `recipe` as TOML at `path`, whole or not at all.

    Raises:
        UsageError: a value is not possible in TOML, or the recipe is too large.
        CannotRunHere: the disk is full or read-only; the old file is still there.
    """
    content = text(recipe).encode()
    if len(content) > LARGEST_BYTES:
        raise UsageError(f"The recipe for {path} is too large to be read again: {len(content) >> 10} KiB.")
    with may_fail(f"write {path}", "Free some space, or name another file."):
        atomic.write(path, content, own_name=True)


def text(recipe: Recipe) -> str:
    """Return `recipe` as TOML, with comments that explain each setting and its proof. Raises UsageError: as
    `write`."""
    recipe = document.without_secrets(recipe)
    head = recipe.recipe
    lines = commented(_introduction(recipe))
    lines += ["", "[recipe]"]
    told = {key: entry for key, entry in msgspec.structs.asdict(head).items() if entry not in _UNTOLD}
    lines += [f"{key} = {(arguments if key == 'command' else value)(entry)}" for key, entry in told.items()]
    lines += ["", "[settings]"]
    for knob, given in recipe.settings.items():
        lines += ["", *commented(_comment(recipe, knob)), f"{quoted(knob)} = {value(given)}"]
    for proof in recipe.proof:
        lines += ["", "[[proof]]"]
        fields = msgspec.structs.asdict(proof)
        lines += [f"{key} = {value(entry)}" for key, entry in fields.items() if entry not in (None, [])]
    lines += ["", *commented(["The machine on which it was proved; unknown facts are left out."]), "[facts]"]
    lines += [f"{_key(name)} = {value(fact)}" for name, fact in recipe.facts.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def _introduction(recipe: Recipe) -> list[str]:
    head = recipe.recipe
    lines = ["Apply it:          dynotune run --recipe THIS_FILE -- COMMAND"]
    lines += (
        ["Without rounding:  dynotune run --exact --recipe THIS_FILE -- COMMAND"] if _rounds(recipe) else []
    )
    lines += ["Prove it again:    dynotune recipe verify THIS_FILE -- COMMAND", ""]
    if head.speedup is not None:
        of_what = "blocks within one process" if head.within else "pairs of runs"
        blocks = f" and {head.num_blocks} blocks within one process" if head.num_blocks else ""
        pairs = "" if head.num_pairs is None else f", {head.num_pairs} {of_what}{blocks}"
        lines += [f"All of it together: {_gain(head.objective, head.speedup, head.ci)}{pairs}."]
    lines += ["Intervals hold with a confidence of 95%, on the command and the machine named below.", ""]
    lines += ["You may edit this file. A changed or added setting is applied, and reported as unproved."]
    return lines


def _rounds(recipe: Recipe) -> bool:
    return any(proof.effect == "numerics" for proof in recipe.proof)


def _gain(objective: Objective, speedup: float, ci: tuple[float, float] | None) -> str:
    """Write `1.421 times as fast (between 1.380 and 1.470)`."""
    if objective in ("memory", "energy"):
        between = "" if ci is None else f" (between {_less(ci[0])} and {_less(ci[1])})"
        return f"{_less(speedup)} less {objective}{between}"
    between = "" if ci is None else f" (between {ci[0]:.3f} and {ci[1]:.3f})"
    what = {
        "latency-p99": " at the 99th percentile",
        "call-latency-p99": " in the 99th percentile of calls",
        "time-to-first-step": " to the first step",
    }.get(objective, "")
    return f"{speedup:.3f} times as fast{what}{between}"


def _less(ratio: float) -> str:
    return f"{100 * (1 - 1 / ratio):.1f}%"


def _comment(recipe: Recipe, knob: str) -> list[str]:
    lines = textwrap.wrap(recipe.about.get(knob, ""), 110)
    found = proof_of(recipe, knob)
    if found is None:
        return [*lines, "No proof belongs to this value."]
    # The names are from a file that anyone may have edited.
    too = " and ".join(knob if knob.isprintable() else repr(knob) for knob in ["it", *found.left_out_too])
    against = {
        "ablation": f"with {too} against without, beside the settings tried with it",
        "confirmation": "all settings together, compared with none",
    }[found.by]
    gain = _gain(recipe.recipe.objective, found.speedup, found.ci)
    is_within = recipe.recipe.within and found.by == "confirmation"
    where = f"in {found.num_pairs} {'blocks within one process' if is_within else 'pairs of runs'}"
    sentence = f"Proved: {gain}, {against}, {where}. Effect: {EFFECTS[found.effect]}."
    return [*lines, *textwrap.wrap(sentence, 110)]


def proof_of(recipe: Recipe, knob: str) -> Proof | None:
    """Return the recipe's proof of this setting; None without a proof of this value."""
    for proof in recipe.proof:
        if proof.knob == knob:
            given = recipe.settings.get(knob, "")
            # Compared as text: "4" and 4 are the same setting.
            same = proof.value is None or str(Setting(knob, proof.value)) == str(Setting(knob, given))
            return proof if same else None
    return None
