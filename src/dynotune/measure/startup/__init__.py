"""Starts of the command, timed with caches cold, warm and off.

`starting` times blocks of starts and resumes them, `start_run` is one start, `phases` splits it, `conclusions`
gathers what the rules on starts ask for, and asks them. `warming` fills the caches once.

Where caches lie and what they hold is known in `launch.caches`.
"""

from dynotune.measure.startup.warming import WarmRequest, warm

__all__ = ["WarmRequest", "starting", "warm"]
