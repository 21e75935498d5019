"""/v1/messages and /v1/messages/count_tokens: Anthropic's conversations of blocks, answers, events and errors."""
