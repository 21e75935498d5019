"""List the architectures whose GGUF files are read: the class that config.json names, and a reader of their settings.

A new architecture is a line here, and a function in `dense` or `mixtures` where it needs one. The name is that of
`general.architecture` in the file.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.models.gguf import dense, mixtures
from inflight.models.gguf.keys import Config, Keys

ARCHITECTURES: dict[str, tuple[str, Callable[[Keys], Config]]] = {
    "llama": ("LlamaForCausalLM", mixtures.llama),
    "mistral3": ("Ministral3ForCausalLM", dense.mistral3),
    "qwen2": ("Qwen2ForCausalLM", dense.nothing),
    "qwen2vl": ("Qwen2ForCausalLM", dense.nothing),
    "qwen2moe": ("Qwen2MoeForCausalLM", mixtures.qwen2moe),
    "qwen3": ("Qwen3ForCausalLM", dense.biased),
    "qwen3moe": ("Qwen3MoeForCausalLM", mixtures.qwen3moe),
    "qwen3next": ("Qwen3NextForCausalLM", mixtures.qwen35moe),
    "qwen35": ("Qwen3_5ForCausalLM", dense.qwen35),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", mixtures.qwen35moe),
    "gemma": ("GemmaForCausalLM", dense.gemma),
    "gemma2": ("Gemma2ForCausalLM", dense.gemma2),
    "gemma3": ("Gemma3ForCausalLM", dense.gemma3),
    "gemma4": ("Gemma4ForCausalLM", mixtures.gemma4),
    "phi2": ("PhiForCausalLM", dense.phi2),
    "phi3": ("Phi3ForCausalLM", dense.phi3),
    "phimoe": ("PhimoeForCausalLM", mixtures.phimoe),
    "gpt-oss": ("GptOssForCausalLM", mixtures.gpt_oss),
    "smollm3": ("SmolLM3ForCausalLM", dense.smollm3),
    "olmo2": ("Olmo2ForCausalLM", dense.olmo2),
    "olmoe": ("OlmoeForCausalLM", mixtures.olmoe),
    "granite": ("GraniteForCausalLM", dense.granite),
    "granitemoe": ("GraniteMoeForCausalLM", mixtures.granitemoe),
    "glm4": ("Glm4ForCausalLM", dense.biased),
    "glm4moe": ("Glm4MoeForCausalLM", mixtures.glm4moe),
    "deepseek2": ("DeepseekV2ForCausalLM", mixtures.deepseek2),
    "lfm2": ("Lfm2ForCausalLM", dense.lfm2),
    "lfm2moe": ("Lfm2MoeForCausalLM", mixtures.lfm2moe),
    "ernie4_5": ("Ernie4_5ForCausalLM", dense.ernie),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", mixtures.ernie_moe),
    "exaone4": ("Exaone4ForCausalLM", dense.exaone4),
    "apertus": ("ApertusForCausalLM", dense.apertus),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", dense.biased),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", mixtures.hunyuan_moe),
    "arcee": ("ArceeForCausalLM", dense.llama),
    "seed_oss": ("SeedOssForCausalLM", dense.seed_oss),
    "command-r": ("CohereForCausalLM", dense.cohere),
    "cohere2": ("Cohere2ForCausalLM", dense.cohere2),
    "nemotron": ("NemotronForCausalLM", dense.nemotron),
    "starcoder2": ("Starcoder2ForCausalLM", dense.starcoder2),
}
