"""Schema objects in, text out.

`terminal` shows a comparison while it runs and when it is done, `catalogue` shows knobs, `study` a study in the
terminal and `html` the same as a page, `words` says numbers as people read them. Nothing here decides: a verdict
is shown as it was found, and what is unknown is called unknown. The modules are imported where they are used, for
rich is not needed to parse a command.
"""

__all__ = ["catalogue", "terminal", "words"]
