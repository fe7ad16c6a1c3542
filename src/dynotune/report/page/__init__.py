"""Write a study, a comparison or a diagnosis as one HTML page that needs no network, or as Markdown.

`comparison`, `diagnosis` and `study` build the view of a document, with `plots` and tables. `html` fills
templates with a view; the templates lay it out and compute nothing. Every text from the user's program is
escaped. `report.study` shows the same rows in the terminal.
"""

__all__ = ["html"]
