"""Write a recipe as a unified diff against the files of the user's program.

`program` finds the files that the command runs, `source` parses and edits a file, and `diff` writes git's
form. `settings` decides where each setting is edited: in a call (`calls`), in the default of an option
(`options`), in a configuration file (`configuration`, which knows Hydra's `overrides` on the command line),
or in a statement (`statements`). `patch` puts them together.

Nothing is written to the program's files, and nothing of the program is run.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.recipes.patch.patch import Patch, patch_of

__all__ = ["Patch", "patch_of"]

_HOMES = {"patch": "Patch patch_of"}

__getattr__ = lazy_face(__name__, _HOMES)
