"""`qpack check`: finds, repairs and reports text files that are not clean, on top of textfix."""
