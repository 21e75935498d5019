"""The HTTP server: OpenAI's endpoints over one engine, batch jobs, metrics. It asks the engine through its bridge
alone: requests in, events out."""
