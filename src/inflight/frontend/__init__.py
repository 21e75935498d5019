"""Convert prompts to requests and events to outputs, for the Python API, the command line and the server."""
