"""Checkpoint -> bundle. Runs in CI pipelines without a GPU; never imported by the runtime."""
