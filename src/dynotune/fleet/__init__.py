"""Share one study between hosts: keep studies in a database, or run blocks on the nodes of a Ray cluster.

This room decides which worker leads a study and which worker runs a block, and moves studies and blocks
between hosts. `search` decides how a worker runs a block. `dynotune[storage]` installs SQLAlchemy,
`dynotune[ray]` installs Ray.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.fleet.ray_hosts import RayHosts
    from dynotune.fleet.store import Store, open_store

__all__ = ["RayHosts", "Store", "open_store"]
__getattr__ = lazy_face(__name__, {"ray_hosts": "RayHosts", "store": "Store open_store"})
