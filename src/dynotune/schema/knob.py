"""Knobs: what can be set, where it is set, what it may change, and where that is documented."""

from collections.abc import Callable
from typing import Literal

import msgspec

from dynotune.schema.facts import Facts

When = Literal["process", "before_cuda", "construct", "any"]
Effect = Literal["exact", "sampling", "numerics", "semantics", "system"]
Scalar = bool | int | float | str


class Env(msgspec.Struct, frozen=True, tag="env"):
    """An environment variable, set before the process starts."""

    name: str


class AllocConf(msgspec.Struct, frozen=True, tag="alloc_conf"):
    """One key of PYTORCH_ALLOC_CONF, merged with the keys that are already set."""

    key: str


class Preload(msgspec.Struct, frozen=True, tag="preload"):
    """A shared library put first in LD_PRELOAD; the value names the library, `libraries` lists where it may be."""

    libraries: dict[str, tuple[str, ...]]


class Attr(msgspec.Struct, frozen=True, tag="attr"):
    """A module attribute, by its dotted path."""

    path: str


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A setter and a getter, by their dotted paths. The setter takes the value alone."""

    set: str
    get: str


class Constructor(msgspec.Struct, frozen=True, tag="constructor"):
    """An argument of the constructors of some classes, by their dotted paths."""

    targets: tuple[str, ...]
    argument: str


class Method(msgspec.Struct, frozen=True, tag="method"):
    """An argument of some methods, by their dotted paths, passed where the agent's guard allows it."""

    targets: tuple[str, ...]
    argument: str


class Module(msgspec.Struct, frozen=True, tag="module"):
    """A change of the outermost module at its first call; `action` is the change's name in the agent."""

    action: str


class Library(msgspec.Struct, frozen=True, tag="library"):
    """A change of functions of libraries that the program imports; `action` is the change's name in the agent."""

    action: str


class Argument(msgspec.Struct, frozen=True, tag="argument"):
    """A placeholder of the command, `{name}`, filled in before the command is started."""

    name: str


class Revision(msgspec.Struct, frozen=True, tag="revision"):
    """The git revision at which the command sees its repository."""


class Interpreter(msgspec.Struct, frozen=True, tag="interpreter"):
    """The Python that runs the command."""


InProcess = Attr | Call | Constructor | Method | Module | Library
Site = Env | AllocConf | Preload | InProcess | Argument | Revision | Interpreter


def is_of_launch(site: Site) -> bool:
    """Tell whether a setting at this site changes the started command, rather than something inside its process."""
    return isinstance(site, Argument | Revision | Interpreter)


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """A knob: something that a setting gives a value.

    Args:
        id: dotted name, family first.
        site: where it is set and read back.
        type: type of its values.
        values: the accepted values; empty if every value of the type is accepted.
        minimum, maximum: smallest and largest number allowed.
        default: what applies if nobody sets the knob, in words.
        when: latest moment at which setting the knob still works.
        effect: what the knob may change besides speed.
        needs: facts that `applies` reads.
        applies: function that tells whether the knob can matter here; called only if all of `needs` are known.
        unless: why the knob does not apply, in words, if `applies` returns False.
        packages: by value, alternative packages of which the value needs one, possibly with `-headless` after the name.
        doc: what the knob does, one or two sentences.
        hurts: when the knob makes things worse, or its traps; may be empty.
        not_switched: why the knob cannot be switched while a program runs; "" if it can, or if `when` is the reason.
        source: where the knob is documented.
    """

    id: str
    site: Site
    type: Literal["bool", "int", "float", "str"]
    values: tuple[Scalar, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    default: str
    when: When
    effect: Effect
    needs: tuple[str, ...] = ()
    applies: Callable[[Facts], bool] | None = None
    unless: str = ""
    packages: dict[str, tuple[str, ...]] = {}
    doc: str
    hurts: str = ""
    not_switched: str = ""
    source: str
