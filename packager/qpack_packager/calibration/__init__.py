"""Calibrated int4: what a text's activations say of the inputs of each matrix, and rounding that makes use of it."""
