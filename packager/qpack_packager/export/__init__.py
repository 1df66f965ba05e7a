"""`qpack export`: a bundle's weights as a Hugging Face checkpoint."""
