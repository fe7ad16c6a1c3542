"""Write a report as one HTML page that needs no network, or as Markdown.

`html` and `markdown` write blocks and know no documents; `charts` draws bars and intervals as SVG, `elements`
writes tags. Every text from the user's program is escaped.
"""

__all__ = ["html"]
