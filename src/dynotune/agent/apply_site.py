"""What every place where settings act has in common."""


class Site:
    """Settings that act at one place. An entry may raise: `Settings` catches it, and leaves the site alone.

    Args:
        planned: the settings of this place, as in the plan: dicts of knob, value, site, keep.
        event: takes a dict; writes it into the record.
    """

    wants_around = False

    def __init__(self, planned, event):
        self.planned = planned
        self.event = event
        self.failure = ""

    def before_torch(self):
        """At interpreter start, before the program's first line."""

    def after_torch(self, torch):
        """`import torch` has just finished; nothing has used it yet."""

    def hold(self):
        """Put back what the program has changed."""

    def on_loader(self, loader):
        """A DataLoader is about to be drawn from for the first time."""

    def on_root(self, module):
        """An outermost module is about to run for the first time."""

    def inputs(self, module, args, kwargs):
        """What the outermost module is to be called with."""
        return args, kwargs

    def around(self, module, args, kwargs):
        """None, or `(context, finish)`: the call is made in `context`, its output goes through `finish`."""

    def readback(self):
        """One dict a setting, with the fields of `schema.run.Readback`."""
        raise NotImplementedError


def text(value):
    """A value as the user wrote it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def answer(setting, found, witness, ok, detail=""):
    """A read-back. `found` None: nothing could witness it, for the reason in `detail`."""
    return {
        "knob": setting["knob"],
        "asked": text(setting["value"]),
        "found": {"type": "unknown", "reason": detail or witness} if found is None else text(found),
        "witness": witness,
        "ok": ok,
        "detail": detail,
    }


def resolve(root, path):
    """The object that a dotted path names, `root` being what its first word stands for.

    Raises:
        AttributeError: this version has no such thing.
    """
    for name in path.split(".")[1:]:
        root = getattr(root, name)
    return root
