"""A study as one HTML page that needs no network.

`html` fills the template with `plots` and `tables`; the page quotes every text of a study. The same rows for the
terminal are in `report.study`.
"""

__all__ = ["html"]
