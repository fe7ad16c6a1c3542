"""Recipes: written from studies; read, checked and exported as the untrusted input that they are.

`writing` makes a recipe from a study, `checking` lets through what a recipe may set and compares machines,
`verify` holds a recipe against a new comparison, `export` says what each setting takes elsewhere.

The struct is `schema.recipe`'s. What is proved is decided in `search`; texts for shells and containers are made in
`report.export`.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.recipes.export import ON_WORKERS, export_parts
    from dynotune.recipes.verify import judge_recipe
    from dynotune.recipes.writing import recipe_of

__all__ = ["ON_WORKERS", "checking", "export_parts", "judge_recipe", "recipe_of"]

_HOMES = {"export": "ON_WORKERS export_parts", "verify": "judge_recipe", "writing": "recipe_of"}

__getattr__ = lazy_face(__name__, _HOMES)
