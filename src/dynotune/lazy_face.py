"""A room's face that imports late (PEP 562): a name's module is imported when the name is first asked for.

A face whose names are cheap to import, or are all needed by whoever needs one, imports them at once. This one
is for faces that a light command passes through, and for `launch`, parts of which run without site-packages.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_face"]


def lazy_face(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Build the `__getattr__` of a package.

    Args:
        package: `__name__` of the package.
        homes: by module, relative to the package, its names. No name may be that of a module of the package:
            the import system would put the module in its place.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def attribute(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return attribute
