"""Find which of many steps between a good and a bad end made a command slow.

`ends` reads what the ends are: revisions of git (`revisions`), versions of a package (`packages`), or two
files of `doctor` (`differences`). Each kind makes a line of points, and the settings under which the command
is at a point. `halving` says which point is next, and how much error a comparison may have. `protocol` runs
the comparisons, keeps them, and resumes.

Each comparison is one of `measure.bench`.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.bisect.protocol import FILE, BisectRequest, bisect, resume

__all__ = ["FILE", "BisectRequest", "bisect", "resume"]

_HOMES = {"protocol": "FILE BisectRequest bisect resume"}

__getattr__ = lazy_face(__name__, _HOMES)
