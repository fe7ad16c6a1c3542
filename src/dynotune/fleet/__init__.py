"""Several hosts on one study: studies in a database that workers share, and the nodes of a Ray cluster.

Here: who leads a study, who has a block, and how both reach another host. Not here: what a worker does with a block,
which `search` says. SQLAlchemy comes with `dynotune[storage]`, and Ray with `dynotune[ray]`.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.fleet.ray_hosts import RayHosts
    from dynotune.fleet.store import Store, open_store

__all__ = ["RayHosts", "Store", "open_store"]
__getattr__ = lazy_face(__name__, {"ray_hosts": "RayHosts", "store": "Store open_store"})
