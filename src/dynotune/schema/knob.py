"""What can be set: where it is set, what it may change, and where that is written down."""

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
    """A shared library put first in LD_PRELOAD; the value names it, `libraries` lists where it may be."""

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
    """An argument of some methods, by their dotted paths, given where the agent's guard allows it."""

    targets: tuple[str, ...]
    argument: str


class Module(msgspec.Struct, frozen=True, tag="module"):
    """Change of the outermost module at its first call; `action` names it in the agent."""

    action: str


class Library(msgspec.Struct, frozen=True, tag="library"):
    """Change of functions of libraries that the program imports; `action` names it in the agent."""

    action: str


class Argument(msgspec.Struct, frozen=True, tag="argument"):
    """A placeholder of the command, `{name}`, filled in before it is started."""

    name: str


class Revision(msgspec.Struct, frozen=True, tag="revision"):
    """The git revision at which the command sees its repository."""


class Interpreter(msgspec.Struct, frozen=True, tag="interpreter"):
    """The Python that runs the command."""


InProcess = Attr | Call | Constructor | Method | Module | Library
Site = Env | AllocConf | Preload | InProcess | Argument | Revision | Interpreter


def is_of_launch(site: Site) -> bool:
    """Tell whether it changes what is started, and nothing inside of it."""
    return isinstance(site, Argument | Revision | Interpreter)


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be set.

    Args:
        id: dotted name, family first.
        site: where it is set and read back.
        type: what a value is parsed as.
        values: the values that exist; empty when any value of the type does.
        minimum, maximum: smallest and largest number allowed.
        default: what holds when nobody sets it, in words.
        when: latest moment at which setting it still works.
        effect: what it may change besides speed.
        needs: facts that `applies` reads.
        applies: whether it can matter here; called only with all of `needs` known.
        unless: why it does not apply, in words, for when `applies` says no.
        packages: of values that need one, packages of which any will do, or what is called so and `-headless`.
        doc: what it does, one or two sentences.
        hurts: when it makes things worse, or traps; may be empty.
        not_switched: why it cannot be switched on and off while a program runs; empty if it can, or if `when` says why.
        source: where that is documented.
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
