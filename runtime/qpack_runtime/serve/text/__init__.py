"""Text on its way in and out of the engine: templates, tool calls, grammars, stop strings."""
