"""Numbers, times, sizes and names as people read them."""
