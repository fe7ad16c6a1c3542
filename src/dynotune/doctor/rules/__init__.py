"""The rules, one module for each family. Every `Rule` that a module defines is a rule, alone or in a tuple.

A rule is a pure function of an `ObservationView`. Arithmetic that families share lies in the parent folder.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from dynotune.doctor.declaration import Rule

__all__ = ["RULES"]


def _defined_by(family: str) -> Iterator[Rule]:
    for value in vars(importlib.import_module(f"{__name__}.{family}")).values():
        yield from (each for each in (value if isinstance(value, tuple) else [value]) if isinstance(each, Rule))


RULES = tuple(rule for family in pkgutil.iter_modules(__path__) for rule in _defined_by(family.name))
"""In the order in which they are asked: by the family's name, then by definition."""
