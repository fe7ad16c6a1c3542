"""Knobs: what can be set, where a knob is set, what a knob may change, and where it is documented."""

from collections.abc import Callable
from typing import Literal

import msgspec

from dynotune.schema.facts import Facts

When = Literal["process", "before_cuda", "construct", "any"]
Effect = Literal["exact", "sampling", "numerics", "semantics", "system"]
Scalar = bool | int | float | str
WITHOUT_ROUNDING: tuple[Effect, ...] = ("exact", "sampling")
"""Effects of settings that neither round otherwise nor change what the program computes."""


class Env(msgspec.Struct, frozen=True, tag="env"):
    """Site of a knob: an environment variable, set before the process starts."""

    name: str


class AllocConf(msgspec.Struct, frozen=True, tag="alloc_conf"):
    """Site of a knob: a key of PYTORCH_ALLOC_CONF, merged with the keys that are already set."""

    key: str


class Preload(msgspec.Struct, frozen=True, tag="preload"):
    """A shared library put first in LD_PRELOAD; the value names the library, `libraries` lists where it may
    be."""

    libraries: dict[str, tuple[str, ...]]


class Attr(msgspec.Struct, frozen=True, tag="attr"):
    """Site of a knob: an attribute of a Python module, by its dotted path."""

    path: str


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Site of a knob: a setter and a getter, by their dotted paths. The setter takes the value alone."""

    set: str
    get: str


class Constructor(msgspec.Struct, frozen=True, tag="constructor"):
    """Site of a knob: an argument of some classes' constructors, by the dotted paths of the classes."""

    targets: tuple[str, ...]
    argument: str


class Method(msgspec.Struct, frozen=True, tag="method"):
    """Site of a knob: an argument of some methods (by dotted path), passed if the agent's guard allows the
    change."""

    targets: tuple[str, ...]
    argument: str


class Module(msgspec.Struct, frozen=True, tag="module"):
    """Site of a knob: a change of the outermost module at its first call; `action`: the change's name in the
    agent."""

    action: str


class Library(msgspec.Struct, frozen=True, tag="library"):
    """Site of a knob: a change of functions of imported libraries; `action`: the change's name in the
    agent."""

    action: str


class Argument(msgspec.Struct, frozen=True, tag="argument"):
    """Site of a knob: a placeholder `{name}` in the command, filled in before the command is started."""

    name: str


class Revision(msgspec.Struct, frozen=True, tag="revision"):
    """Site of a knob: the git revision of the repository that the command sees."""


class Interpreter(msgspec.Struct, frozen=True, tag="interpreter"):
    """Site of a knob: the Python interpreter that runs the command."""


InProcess = Attr | Call | Constructor | Method | Module | Library
Site = Env | AllocConf | Preload | InProcess | Argument | Revision | Interpreter


def is_of_launch(site: Site) -> bool:
    """Return whether a setting at this site changes how the command is started, not the state inside its
    process."""
    return isinstance(site, Argument | Revision | Interpreter)


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """A knob: a parameter to which a setting gives a value.

    Args:
        id: dotted name, family first.
        site: where the knob is set and read back.
        type: type of the knob's values.
        values: the accepted values; empty if every value of the type is accepted.
        minimum, maximum: smallest and largest number allowed.
        default: as text, the behaviour if nobody sets the knob.
        when: latest time at which setting the knob still works.
        effect: what the knob may change besides speed.
        needs: names of the facts that `applies` reads.
        applies: function that returns whether the knob can matter here; called only if all of `needs` are
            known.
        unless: as text, why the knob does not apply if `applies` returns False.
        packages: by value, the alternative packages of which one must be installed (`-headless` may follow
            the name).
        doc: one or two sentences on the effect of the knob.
        hurts: when the knob makes a program worse, or its pitfalls; may be empty.
        live_fact: name of the fact of a live process that is the knob's value there; "" if no fact is.
        not_switched: why the knob cannot be switched while a program runs; "" if possible, or if `when` is
            the reason.
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
    live_fact: str = ""
    not_switched: str = ""
    source: str
