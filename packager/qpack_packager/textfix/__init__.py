"""Text files of a checkpoint: decoded without guessing, made canonical, checked. `fix.fix` is the way in."""
