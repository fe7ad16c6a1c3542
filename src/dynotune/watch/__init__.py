"""Watch a live run: follow its records, store values in bounded memory, analyse the run once a second, and
show it.

`RunWatcher` follows a run folder (`follower`, `processes`), stores values (`store`, `recent`), and makes one
`View` a second (`analysis`: sentence and alerts). `DocumentWatcher` follows the document of a study or a
comparison. Displays show the report of the newest state, which `report` lays out: `Lines` and `Screen` in the
terminal, `Server` as a page and for Prometheus, from a source (`sources`); `trackers.log` and `Otlp` give a
run's numbers to other tools, which `end` closes. `Commands` starts the user's own commands at each alert.

`launch` starts the command. This room does not reach into the program, except by `signals`: a watcher that
started the run asks a stalled program for its threads' stacks, and kills what remains of a command that it
ends. A watcher that joined a run only reads.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.watch.document_watcher import DocumentWatcher
    from dynotune.watch.otlp import Otlp
    from dynotune.watch.sending import Sender, end
    from dynotune.watch.server import Server
    from dynotune.watch.sources import DocumentSource, RunSource, Source
    from dynotune.watch.terminal import Lines, Screen
    from dynotune.watch.trackers import log
    from dynotune.watch.watcher import Commands, RunWatcher

__all__ = [
    "Commands",
    "DocumentSource",
    "DocumentWatcher",
    "Lines",
    "Otlp",
    "RunSource",
    "RunWatcher",
    "Screen",
    "Sender",
    "Server",
    "Source",
    "end",
    "log",
]

_HOMES = {
    "document_watcher": "DocumentWatcher",
    "otlp": "Otlp",
    "sending": "Sender end",
    "server": "Server",
    "sources": "DocumentSource RunSource Source",
    "terminal": "Lines Screen",
    "trackers": "log",
    "watcher": "Commands RunWatcher",
}

__getattr__ = lazy_face(__name__, _HOMES)
