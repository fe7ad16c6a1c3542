"""Write recipes from studies; read, check and export recipes, which are untrusted input.

`writing` makes a recipe from a study. `checking` decides which settings a recipe may apply, and compares
machines, and a recipe's claim with a new comparison. `export` writes each setting in the form for another
tool.

`schema.recipe` defines the struct. `search` decides which settings are proved. `report.export` writes texts
for shells and containers.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.recipes.checking import judge_recipe
    from dynotune.recipes.export import export_parts
    from dynotune.recipes.writing import recipe_of

__all__ = ["checking", "export_parts", "judge_recipe", "recipe_of"]

_HOMES = {"checking": "judge_recipe", "export": "export_parts", "writing": "recipe_of"}

__getattr__ = lazy_face(__name__, _HOMES)
