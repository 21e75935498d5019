"""ollama's API: chat, generation and embeddings over the engine, and the models that its clients list and manage."""
