"""List the site of each kind of setting."""

from __future__ import annotations

from .allocator import AllocatorSite
from .autocast import AutocastSite
from .batches import BatchesSite
from .channels_last import ChannelsLastSite
from .compile import CompileSite
from .decode import DecodeSite
from .delay import DeviceDelay, FunctionDelay, HostDelay, LoaderDelay, TransferDelay
from .distributed import DistributedSite
from .environment import EnvironmentSite
from .globals import GlobalSite
from .grad_mode import GradModeSite
from .loader import LoaderSite
from .optimizer import OptimizerSite
from .preload import PreloadSite
from .quantize import QuantizeSite
from .sharded import ShardedSite
from .site import Site
from .transfer import TransferSite
from .worker_threads import WorkerThreadsSite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Planned

SITES: dict[str, type[Site]] = {
    "env": EnvironmentSite,
    "alloc_conf": AllocatorSite,
    "preload": PreloadSite,
    "attr": GlobalSite,
    "call": GlobalSite,
    "method": TransferSite,
    "torch.utils.data.DataLoader": LoaderSite,
    "decode": DecodeSite,
    "batches": BatchesSite,
    "worker_threads": WorkerThreadsSite,
    "channels_last": ChannelsLastSite,
    "autocast": AutocastSite,
    "grad_mode": GradModeSite,
    "quantize": QuantizeSite,
    "compile": CompileSite,
    "torch.optim.Adam": OptimizerSite,
    "torch.nn.parallel.DistributedDataParallel": DistributedSite,
    "torch.distributed.fsdp.FSDPModule": ShardedSite,
    "delay-host": HostDelay,
    "delay-device": DeviceDelay,
    "delay-transfer": TransferDelay,
    "delay-loader": LoaderDelay,
    "delay-function": FunctionDelay,
}
"""By an action, a class to construct, or a type: the sites, in the order in which they are turned on.

The decoder acts on the workers of a loader, so it comes after the loader's own settings.
"""
_ORDER: list[type[Site] | None] = [*dict.fromkeys(SITES.values()), None]


def site_of(site: dict[str, Any]) -> type[Site] | None:
    """Return the class for a setting's site in the plan; None for a site of another version's catalogue."""
    kind = site.get("type", "")
    words = site.get("targets", ()) if kind == "constructor" else (site.get("action", kind),)
    return next((SITES[word] for word in words if word in SITES), None)


def by_site(planned: list[Planned]) -> dict[type[Site] | None, list[Planned]]:
    """Group settings by their site's class, in the order of `SITES`; settings of unknown sites come last."""
    groups: dict[type[Site] | None, list[Planned]] = {}
    for setting in planned:
        groups.setdefault(site_of(setting.get("site", {})), []).append(setting)
    return {kind: groups[kind] for kind in _ORDER if kind in groups}
