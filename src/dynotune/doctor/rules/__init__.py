"""The rules, a module for each subject. Every `Rule` that a module defines is a rule, alone or in a tuple.

A rule is a pure function of an `ObservationView`. Arithmetic that families share lies in the parent folder.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from dynotune.doctor.declaration import Rule

__all__ = ["RULES"]


def _defined_by(module: str) -> Iterator[Rule]:
    for value in vars(importlib.import_module(f"{__name__}.{module}")).values():
        yield from (
            each for each in (value if isinstance(value, tuple) else [value]) if isinstance(each, Rule)
        )


RULES = tuple(
    sorted(
        (rule for module in pkgutil.iter_modules(__path__) for rule in _defined_by(module.name)),
        key=lambda rule: rule.family,
    )
)
"""In the order in which they are asked: by the family's name, then by definition."""
