"""The catalogue of knobs, a family a file. Data only: nothing is set from here."""
