"""What a model wrote, told apart: content for the reader, reasoning, and calls of tools. One file a format."""
