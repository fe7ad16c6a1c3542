"""Commands that are tables, and a bench over them: what `tune` searches is known, and takes no time."""
