"""Schema objects in, text out.

`terminal` shows a comparison while it runs and when it is done, `catalogue` shows knobs, `study/` a study in the
terminal and `page/` the same as a page, `trace/` recorded traces, `startup/` timed starts and caches. Nothing here
decides: a verdict is shown as it was found, and what is unknown is called unknown. The modules are imported where they
are used, for rich is not needed to parse a command. How numbers read is `text`'s.
"""

__all__ = ["catalogue", "terminal"]
