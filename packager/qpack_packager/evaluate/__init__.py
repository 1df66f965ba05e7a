"""How much a bundle's answers differ from those of the model it was made of."""
