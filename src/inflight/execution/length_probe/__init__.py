"""A probe of output lengths: reads the model's hidden states, and learns from how long answers become."""
