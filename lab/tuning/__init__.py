"""Programs that `dynotune tune` is measured on: their parts, their tables, and what is told of them."""
