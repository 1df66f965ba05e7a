"""Who vouches for a bundle: DSSE envelopes over its in-toto statement."""
