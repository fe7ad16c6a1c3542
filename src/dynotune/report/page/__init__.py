"""A study as one HTML page that stands alone."""
