"""The console in the browser. Nothing here is loaded, and no extra is needed, before a console is started."""

PORT = 8484
"""Where a console listens, unless told otherwise."""
