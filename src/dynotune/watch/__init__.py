"""Watch a live run: follow its records, store values in bounded memory, analyse the run once a second, and
show it.

`RunWatcher` follows a run folder (`follower`, `processes`), stores values (`store`), and makes one `View` a
second (`analysis`: the sentence and the alerts). Displays only show the view: `Lines` and `Screen` in the
terminal, `Server` as a page and for Prometheus; `trackers.log` and `Otlp` give its numbers to other tools;
`Commands` starts the user's own commands at each alert.

`launch` starts the command. This room does not reach into the program, except by `signals`: a watcher that
started the run asks a stalled program for its threads' stacks, and kills what remains of a command that it
ends. A watcher that joined a run only reads.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.watch.otlp import Otlp
    from dynotune.watch.server import Server
    from dynotune.watch.terminal import Lines, Screen
    from dynotune.watch.trackers import log
    from dynotune.watch.watcher import Commands, RunWatcher

__all__ = ["Commands", "Lines", "Otlp", "RunWatcher", "Screen", "Server", "log"]

_HOMES = {
    "otlp": "Otlp",
    "server": "Server",
    "terminal": "Lines Screen",
    "trackers": "log",
    "watcher": "Commands RunWatcher",
}

__getattr__ = lazy_face(__name__, _HOMES)
