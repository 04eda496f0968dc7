"""The HTTP server for clients: it parses requests, executes the conduct's commands (the driver), and writes answers."""
