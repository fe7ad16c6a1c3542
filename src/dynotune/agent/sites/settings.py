"""Apply the planned settings inside the user's process, and read them back.

No error here reaches the program: a failure is logged, and the setting's read-back reports it.
"""

from __future__ import annotations

import functools

from .batches import BatchesSite
from .compile import CompileSite
from .decode import DecodeSite
from .distributed import DistributedSite, ShardedSite
from .environment import AllocatorSite, EnvironmentSite, PreloadSite
from .globals import GlobalSite
from .loader import LoaderSite
from .module import AutocastSite, ChannelsLastSite, GradModeSite
from .optimizer import OptimizerSite
from .quantize import QuantizeSite
from .site import Site, answer, call_inside, chosen
from .transfer import TransferSite
from .worker_threads import WorkerThreadsSite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Answer, Args, Event, Kwargs, Log, Planned, Surroundings
    from ..core.hooks import AfterImport

# Keys: an action, a class to construct, or a type.
_SITES: dict[str, type[Site]] = {
    "autocast": AutocastSite,
    "batches": BatchesSite,
    "channels_last": ChannelsLastSite,
    "compile": CompileSite,
    "decode": DecodeSite,
    "grad_mode": GradModeSite,
    "quantize": QuantizeSite,
    "worker_threads": WorkerThreadsSite,
    "torch.utils.data.DataLoader": LoaderSite,
    "torch.optim.Adam": OptimizerSite,
    "torch.nn.parallel.DistributedDataParallel": DistributedSite,
    "torch.distributed.fsdp.FSDPModule": ShardedSite,
    "env": EnvironmentSite,
    "alloc_conf": AllocatorSite,
    "preload": PreloadSite,
    "attr": GlobalSite,
    "call": GlobalSite,
    "method": TransferSite,
}


class Settings:
    """All planned settings of this process.

    `planned`: dicts with the fields of `schema.task.PlannedSetting`.
    """

    def __init__(self, planned: list[Planned], event: Event, log: Log) -> None:
        self._log = log
        self._unplaced: list[Planned] = []
        by_site: dict[type[Site] | None, list[Planned]] = {}
        for setting in planned:
            by_site.setdefault(chosen(setting.get("site", {}), _SITES), []).append(setting)
        self._sites: list[Site] = []
        for site, settings in by_site.items():
            if site is None:
                self._unplaced.extend(settings)
                continue
            try:
                self._sites.append(site(settings, event))
            except Exception as error:
                self._unplaced.extend(settings)
                self._log("planning " + str(settings[0].get("knob")), error)
        self._environment = [site for site in self._sites if isinstance(site, EnvironmentSite)]
        self._has_run_a_root = False

    @property
    def wants_around(self) -> bool:
        """Tell whether any setting needs calls of outermost modules to go through `around_root`."""
        return any(site.wants_around for site in self._sites)

    def is_kept(self, name: str) -> bool:
        """Tell whether the environment variable `name` keeps its value against the program."""
        return any(site.is_kept(name) for site in self._environment)

    def before_torch(self) -> None:
        """Act at interpreter start: from here on, kept environment variables do not change."""
        self._each("before_torch")

    def on_imports(self, hooks: AfterImport) -> None:
        """Act at interpreter start, and prepare to cover libraries that the program imports later."""
        self._each("on_imports", hooks)

    def after_torch(self, torch: Any) -> None:
        """Apply global settings, and cover constructors and methods; `import torch` has just finished."""
        self._each("after_torch", torch)

    def hold(self) -> None:
        """Restore global settings that the program has changed. Call it when the window begins."""
        self._each("hold")

    def on_loader(self, loader: Any) -> None:
        """Act before the first batch is drawn from a DataLoader."""
        self._each("on_loader", loader)

    def on_root(self, module: Any) -> None:
        """Act before the first call of an outermost module."""
        if not self._has_run_a_root:
            self._has_run_a_root = True
            self._each("hold")
        self._each("on_root", module)

    def root_ran(self, module: Any) -> None:
        """Act after the first call of an outermost module."""
        self._each("root_ran", module)

    def around_root(self, call: Callable[..., Any], module: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call `module(*args, **kwargs)` with the inputs, contexts and output conversion of the settings.

        Raises only the exceptions of the program's own code.
        """
        entered: list[Surroundings] = []
        for site in self._sites:
            if site.failure or not site.wants_around:
                continue
            try:
                args, kwargs = site.inputs(module, args, kwargs)
                around = site.around(module, args, kwargs)
            except Exception as error:
                self._fail(site, "around", error)
                continue
            if around is not None:
                entered.append((around[0], functools.partial(self._finished, site, around[1])))
        return call_inside(entered, call, module, args, kwargs)

    def _finished(self, site: Site, finish: Callable[[Any], Any], output: Any) -> Any:
        try:
            return finish(output)
        except Exception as error:
            self._fail(site, "around", error)
            return output

    def readback(self) -> list[Answer]:
        """Return the state of the live process: one dict per setting, with the fields of `schema.run.Readback`."""
        answers = [answer(setting, None, "none", False, "this dynotune cannot apply it") for setting in self._unplaced]
        for site in self._sites:
            if site.failure:
                answers.extend(answer(setting, None, "none", False, site.failure) for setting in site.planned)
                continue
            try:
                answers.extend(site.readback())
            except Exception as error:
                self._log("readback", error)
                failed = "reading it back failed: %r" % error
                answers.extend(answer(setting, None, "none", None, failed) for setting in site.planned)
        return answers

    def _each(self, entry: str, *args: Any) -> None:
        for site in self._sites:
            if not site.failure:
                try:
                    getattr(site, entry)(*args)
                except Exception as error:
                    self._fail(site, entry, error)

    def _fail(self, site: Site, entry: str, error: Exception) -> None:
        site.failure = "it could not be applied: %s: %s" % (type(error).__name__, error)
        self._log("%s of %s" % (entry, site.planned[0]["knob"]), error)
