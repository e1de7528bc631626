"""The console in the browser. Nothing here is imported, and no extra is needed, until a console is started."""

PORT = 8484
"""The console's default port."""
