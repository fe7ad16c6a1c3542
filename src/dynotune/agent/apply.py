"""Applies the planned settings inside the user's process, and reads them back from it.

Nothing here raises into the program: what fails is logged, and the setting's read-back says so.
"""

from .apply_environment import AllocatorSite, EnvironmentSite, PreloadSite
from .apply_globals import GlobalSite
from .apply_loader import LoaderSite
from .apply_module import AutocastSite, ChannelsLastSite, CompileSite
from .apply_optimizer import OptimizerSite
from .apply_site import answer
from .apply_transfer import TransferSite

_MODULE_SITES = {
    "autocast": AutocastSite,
    "channels_last": ChannelsLastSite,
    "compile": CompileSite,
}
_CONSTRUCTOR_SITES = {
    "torch.utils.data.DataLoader": LoaderSite,
    "torch.optim.Adam": OptimizerSite,
}
_SITES = {
    "env": EnvironmentSite,
    "alloc_conf": AllocatorSite,
    "preload": PreloadSite,
    "attr": GlobalSite,
    "call": GlobalSite,
    "method": TransferSite,
}


class Settings:
    """All planned settings of this process.

    Args:
        planned: dicts with the fields of `schema.run.PlannedSetting`.
        event: takes a dict (its key `event` names it) and writes it into the record.
        log: takes a place in words and an exception; by default an event `error`.
    """

    def __init__(self, planned, event, log=None):
        self._event = event
        self._log = log or self._log_event
        self._unplaced = []
        by_site = {}
        for setting in planned:
            by_site.setdefault(_site_for(setting.get("site", {})), []).append(setting)
        self._sites = []
        self._unplaced.extend(by_site.pop(None, ()))
        for site, settings in by_site.items():
            try:
                self._sites.append(site(settings, event))
            except Exception as error:
                self._unplaced.extend(settings)
                self._log("planning " + str(settings[0].get("knob")), error)
        self._environment = [site for site in self._sites if isinstance(site, EnvironmentSite)]
        self._has_run_a_root = False

    @property
    def wants_around(self):
        """Whether calls of outermost modules must go through `around_root`."""
        return any(site.wants_around for site in self._sites)

    def is_kept(self, name):
        """Whether the environment variable `name` keeps its value against the program."""
        return any(site.is_kept(name) for site in self._environment)

    def before_torch(self):
        """At interpreter start: from here on kept environment variables stay what they are."""
        self._each("before_torch")

    def after_torch(self, torch):
        """`import torch` has just finished: global settings are made, constructors and methods covered."""
        self._each("after_torch", torch)

    def hold(self):
        """Put global settings back where the program changed them. Call it where the window begins."""
        self._each("hold")

    def on_loader(self, loader):
        """A DataLoader is about to be drawn from for the first time."""
        self._each("on_loader", loader)

    def on_root(self, module):
        """An outermost module is about to run for the first time."""
        if not self._has_run_a_root:
            self._has_run_a_root = True
            self._each("hold")
        self._each("on_root", module)

    def around_root(self, call, module, args, kwargs):
        """`call(module, *args, **kwargs)`, its inputs, surroundings and output as the settings ask.

        Only what the program's own code raises comes out of here.
        """
        entered = []
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
                entered.append((site, *around))
        return self._call_inside(entered, call, module, args, kwargs)

    def _call_inside(self, entered, call, module, args, kwargs):
        if not entered:
            return call(module, *args, **kwargs)
        site, context, finish = entered[-1]
        with context:
            output = self._call_inside(entered[:-1], call, module, args, kwargs)
        try:
            return finish(output)
        except Exception as error:
            self._fail(site, "around", error)
            return output

    def readback(self):
        """What the live process says: one dict a setting, with the fields of `schema.run.Readback`."""
        answers = [answer(setting, None, "none", False, "this dynotune cannot apply it") for setting in self._unplaced]
        for site in self._sites:
            if site.failure:
                answers.extend(answer(setting, None, "none", False, site.failure) for setting in site.planned)
                continue
            try:
                answers.extend(site.readback())
            except Exception as error:
                self._log("readback", error)
                answers.extend(
                    answer(setting, None, "none", None, "reading it back failed: %r" % error)
                    for setting in site.planned
                )
        return answers

    def _each(self, entry, *args):
        for site in self._sites:
            if not site.failure:
                try:
                    getattr(site, entry)(*args)
                except Exception as error:
                    self._fail(site, entry, error)

    def _fail(self, site, entry, error):
        site.failure = "it could not be applied: %s: %s" % (type(error).__name__, error)
        self._log("%s of %s" % (entry, site.planned[0]["knob"]), error)

    def _log_event(self, where, error):
        self._event({"event": "error", "where": where, "error": "%s: %s" % (type(error).__name__, error)})


def _site_for(site):
    kind = site.get("type")
    if kind == "module":
        return _MODULE_SITES.get(site.get("action"))
    if kind == "constructor":
        return next(
            (s for target, s in _CONSTRUCTOR_SITES.items() if target in site.get("targets", ())), None
        )
    return _SITES.get(kind)
