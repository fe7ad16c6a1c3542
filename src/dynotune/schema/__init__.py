"""The vocabulary of dynotune: frozen structs, errors, and the documents that are written to disk.

Each module defines one concept, and other rooms import from the module by its name (`from dynotune.schema.run
import RunSpec`), so that an import shows the struct's document. Every document has its schema's name and
version. Reading validates the document and refuses an unknown major version. docs/reference/records.md and
the pages linked there explain the fields; docstrings here add details.

This room does not observe, launch or compute.
"""

__all__ = []
