"""The bundle contract: what a bundle may contain and how to tell whether it is whole.

The only room that both the packager and the runtime see. It imports the standard library and jsonschema, nothing else.
"""
