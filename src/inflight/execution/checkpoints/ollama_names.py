"""Suggest a hub repository, or a packaged model, for a name of ollama's library, such as `qwen3:4b`."""

from __future__ import annotations

# Family → default size, and the repository with {} for the size as it is spelled there.
_FAMILIES = {
    "llama3.2": ("3b", "bartowski/Llama-3.2-{}-Instruct-GGUF"),
    "llama3.3": ("70b", "bartowski/Llama-3.3-{}-Instruct-GGUF"),
    "llama3": ("8b", "bartowski/Meta-Llama-3-{}-Instruct-GGUF"),
    "llama3.1": ("8b", "bartowski/Meta-Llama-3.1-{}-Instruct-GGUF"),
    "qwen3": ("8b", "Qwen/Qwen3-{}-GGUF"),
    "qwen2.5": ("7b", "Qwen/Qwen2.5-{}-Instruct-GGUF"),
    "qwen2.5-coder": ("7b", "Qwen/Qwen2.5-Coder-{}-Instruct-GGUF"),
    "gemma3": ("4b", "ggml-org/gemma-3-{}-it-GGUF"),
    "gemma2": ("9b", "bartowski/gemma-2-{}-it-GGUF"),
    "smollm2": ("1.7b", "HuggingFaceTB/SmolLM2-{}-Instruct-GGUF"),
    "gpt-oss": ("20b", "ggml-org/gpt-oss-{}-GGUF"),
    "deepseek-r1": ("7b", "bartowski/DeepSeek-R1-Distill-Qwen-{}-GGUF"),
    "mistral": ("7b", "bartowski/Mistral-{}-Instruct-v0.3-GGUF"),
    "phi4": ("14b", "bartowski/phi-4-GGUF"),
}
_LOWER = ("ggml-org/", "bartowski/gemma")  # repositories that spell sizes in small letters
_PACKAGED = {"smollm2:135m": "smollm2", "all-minilm": "all-minilm-l6-v2", "gemma3:270m": "gemma3-270m"}


def suggestion(name: str) -> str | None:
    """Return the name to use here for a name of ollama's; None where none is known."""
    family, _, tag = name.lower().removesuffix(":latest").partition(":")
    for known, packaged in _PACKAGED.items():
        if name.lower() == known or (":" not in known and family == known):
            return packaged
    if family not in _FAMILIES:
        return None
    default, repository = _FAMILIES[family]
    size = tag.partition("-")[0] or default
    return repository.format(size if repository.startswith(_LOWER) else size.upper())
