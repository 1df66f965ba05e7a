"""Bundles in OCI registries: pushed, pulled, and as an image layout on disk."""
