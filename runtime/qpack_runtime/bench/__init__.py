"""`qpack-runtime bench`: how fast a bundle decodes on this host, and how fast its memory would let it."""
