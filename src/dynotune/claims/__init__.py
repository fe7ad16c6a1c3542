"""Store advice as data and small programs, and test the advice on this machine.

`ledger` reads the claims; `running` tests a claim and judges the evidence; `bundles` reads and writes
evidence. The files of `programs/` run in the user's interpreter and are never imported. `measure` compares
two arms; `doctor` finds claims by word, by finding, and by the settings of a machine.
"""

from typing import TYPE_CHECKING

from dynotune.claims.ledger import all_claims, named
from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.claims.bundles import flipped, new_bundle, read, with_evidence, write
    from dynotune.claims.running import program_hash, run

__all__ = [
    "all_claims",
    "flipped",
    "named",
    "new_bundle",
    "program_hash",
    "read",
    "run",
    "with_evidence",
    "write",
]

__getattr__ = lazy_face(
    __name__, {"bundles": "flipped new_bundle read with_evidence write", "running": "program_hash run"}
)
