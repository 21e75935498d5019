"""Answers of real models in each precision, beside their own weights in float32 and beside llama.cpp."""
