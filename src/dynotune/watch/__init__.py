"""A live run as it is now: followed, stored in bounded room, judged once a second, and shown.

`Watcher` follows a run folder (`follower`, `processes`), keeps what it saw (`store`), and makes one `View` a second
(`analysis`: the sentence and the alerts). What shows the view only shows it: `Lines` and `Screen` in the terminal,
`Server` as a page and for Prometheus; `Commands` starts the user's own at each alert.

Starting the command is `launch`'s. Nothing here reaches into the program, but for the signal that asks a stalled one
where its threads are.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.watch.alerted import Commands
    from dynotune.watch.server import Server
    from dynotune.watch.terminal import Lines, Screen
    from dynotune.watch.watcher import Watcher

__all__ = ["Commands", "Lines", "Screen", "Server", "Watcher"]

_HOMES = {"alerted": "Commands", "terminal": "Lines Screen", "server": "Server", "watcher": "Watcher"}

__getattr__ = lazy_face(__name__, _HOMES)
