"""A GGUF file in bf16 to one of fewer bits, by llama.cpp's own quantizer. Runs where its bindings can be imported.

The quantizer holds the output projection in more bits than a type's name says, by default.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_BF16 = 30  # as the file format numbers types; the bindings do not name it
# By the name of the copy: the type, further options of the quantizer.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Q8_0": ("Q8_0", {}),
    "Q4_0": ("Q4_0", {}),
    "Q4_K_M": ("Q4_K_M", {}),
    "Q4_0-pure": ("Q4_0", {"pure": True}),
    "Q4_0-bf16": ("Q4_0", {"output_tensor_type": _BF16, "token_embedding_type": _BF16}),
}


def main(kind: str, source: str, file: str) -> None:
    from llama_cpp import llama_cpp  # type: ignore[import-not-found]  # not in the environment that checks types

    name, settings = KINDS[kind]
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    for field, value in settings.items():
        setattr(parameters, field, value)
    code = llama_cpp.llama_model_quantize(source.encode(), file.encode(), ctypes.byref(parameters))
    if code:
        raise SystemExit(f"llama_model_quantize answered {code}")


if __name__ == "__main__":
    main(*sys.argv[1:])
