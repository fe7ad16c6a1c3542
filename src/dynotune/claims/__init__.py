"""Advice as data and small programs, and what comes of testing it on this machine.

`running` tests a claim and judges its evidence, `bundles` reads the claims and keeps evidence.
`programs/` runs in the user's interpreter: it stands alone and is never imported. How two arms are compared is
`measure`'s; `doctor` finds claims by word, by finding, and by their traces on a machine.
"""

from typing import TYPE_CHECKING

from dynotune.claims.bundles import all_claims, named
from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.claims.bundles import flipped, new_bundle, read, with_evidence, write
    from dynotune.claims.running import program_hash, run

__all__ = ["all_claims", "flipped", "named", "new_bundle", "program_hash", "read", "run", "with_evidence", "write"]

__getattr__ = lazy_face(
    __name__, {"bundles": "flipped new_bundle read with_evidence write", "running": "program_hash run"}
)
