"""Write a study, a comparison or a diagnosis as one HTML page that needs no network, or as Markdown.

`html` fills the templates with `plots` and `tables`. Every text from the user's program is escaped. `report.study`
shows the same rows in the terminal.
"""

__all__ = ["html"]
