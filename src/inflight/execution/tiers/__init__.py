"""Tiers of KV blocks below the device: what is kept in a folder, and how blocks travel there and back."""
