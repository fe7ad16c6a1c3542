"""The words dynotune is written in: frozen structs, and what of them goes to disk.

Nothing here observes, launches or computes. What is written carries its schema's name and version;
what is read is validated, and an unknown major version is refused.
"""
