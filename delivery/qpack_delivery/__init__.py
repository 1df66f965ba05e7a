"""How a bundle travels, and who vouches for it: bundle -> registry -> bundle on another host."""
