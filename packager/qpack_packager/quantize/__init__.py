"""Weights to int4: which tensors, how they are rounded, and the Marlin layout they are stored in."""
