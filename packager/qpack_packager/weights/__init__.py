"""Weight modules made: checkpoint tensors read in blocks, rounded, and put into the order of the bundle."""
