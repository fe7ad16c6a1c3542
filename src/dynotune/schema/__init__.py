"""The words dynotune is written in: frozen structs, errors, and what goes to disk.

Each module is one word with its parts, and other rooms import from the module by its name
(`from dynotune.schema.run import RunSpec`): the module says which document a struct belongs to. A document carries its
schema's name and version. Reading one validates it and refuses an unknown major version. What the fields of documents
mean stands in docs/reference/records.md and in the pages that it names; docstrings here say what it leaves out.

Nothing here observes, launches or computes.
"""

__all__ = []
