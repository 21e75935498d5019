"""A checkpoint folder to a GGUF file in bf16, by llama.cpp's own converter. Runs in the environment that has what the
converter needs.

The converter recognizes a tokenizer by what it makes of one text, and refuses those that it has never seen, as the one
of these checkpoints; its splits are GPT-2's, so that is what it gets.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(source: str, folder: str, file: str) -> None:
    """source: of the bindings' archive."""
    llama = Path(source) / "vendor/llama.cpp"
    sys.path.insert(0, str(llama))
    from conversion import base  # type: ignore[import-not-found]  # lies in the archive

    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outtype", "bf16", "--outfile", file]
    runpy.run_path(str(llama / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
