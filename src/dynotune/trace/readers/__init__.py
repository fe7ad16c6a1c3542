"""Readers of recorded traces: what torch.profiler and Nsight Systems wrote becomes a `Timeline`."""
