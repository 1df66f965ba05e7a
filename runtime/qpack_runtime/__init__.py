"""Bundle -> tokens. Runs on the edge host; never imports torch, transformers, triton or the packager."""
