"""Time starts of the command, with caches cold, warm and off.

`starting` times and resumes blocks of starts. `start_run` makes one start, `cache_folders` are where its
caches lie, and `phases` divides the start's time. `conclusions` gathers the facts for the rules on starts and
applies the rules. `warming` fills the caches once.

`launch.caches` knows where caches lie and what they contain.
"""

from dynotune.measure.startup.warming import WarmRequest, warm

__all__ = ["WarmRequest", "starting", "warm"]
