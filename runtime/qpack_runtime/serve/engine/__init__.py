"""Many sequences through one engine: which step comes next, and the thread that runs it."""
