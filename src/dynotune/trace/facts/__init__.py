"""What a `Timeline` says of a window: steps, idle time, kernels, copies, places, ranks."""
