"""The rules, a family a module. Importing a module registers its rules."""
