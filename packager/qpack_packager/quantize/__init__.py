"""Weights to int4 and int8: how they are rounded, and the Marlin layout that int4 codes are stored in."""
