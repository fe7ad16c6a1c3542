"""The vocabulary of dynotune: frozen structs, errors, and the documents that are written to disk.

Each module defines one concept with its parts, and other rooms import from the module by its name (`from
dynotune.schema.run import RunSpec`), which shows the document that a struct belongs to. A document carries its schema's
name and version. Reading a document validates it and refuses an unknown major version. docs/reference/records.md and
the pages that it names explain the fields; docstrings here add to them.

This room does not observe, launch or compute.
"""

__all__ = []
