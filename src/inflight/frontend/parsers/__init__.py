"""Split a model's text into content, reasoning and tool calls. Each format has a file."""
