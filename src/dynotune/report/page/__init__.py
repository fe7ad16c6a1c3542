"""A study, a comparison or a diagnosis as one HTML page that needs no network, or as Markdown.

`html` fills the templates with `plots` and `tables`; the page quotes every text of the program. What the pages of a
comparison and of a diagnosis tell is in modules of these names. The same rows for the terminal are in `report.study`.
"""

__all__ = ["html"]
