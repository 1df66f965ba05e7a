"""The pieces of check_image.py."""
