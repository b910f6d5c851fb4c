"""What a GGUF file does not say: how each architecture pairs elements (llama.cpp's `llama_model_rope_type`)."""

from __future__ import annotations

from ..mode import Mode

_NORMAL = (
    "llama llada llama4 llama-embed deci baichuan starcoder internlm2 minicpm xverse command-r cohere2 cohere2moe olmo "
    "arctic deepseek deepseek2 deepseek2-ocr deepseek32 plm chatglm granite granitemoe granitehybrid chameleon "
    "bailingmoe neo-bert smollm3 arcee ernie4_5 ernie4_5-moe mistral3 mistral4 maincoder glm-dsa glm4"
)
_NEOX = (
    "falcon falcon-h1 grok dbrx jina-bert-v3 modern-bert nomic-bert nomic-bert-moe eurobert stablelm bitnet "
    "qwen qwen2 dream qwen2moe qwen3 qwen3moe qwen3next llada-moe rnd1 olmo2 olmoe phi2 phi3 phimoe plamo plamo2 "
    "plamo3 gemma gemma2 gemma3 gemma3n gemma4 gemma-embedding starcoder2 openelm gptneox codeshell orion "
    "nemotron exaone exaone4 exaone-moe minicpm3 bailingmoe2 dots1 hunyuan-moe hunyuan-dense jais2 gpt-oss lfm2 "
    "lfm2moe smallthinker seed_oss grovemoe apertus minimax-m2 cogvlm pangu-embedded afmoe mimo2 step35 glm4moe laguna "
    "hunyuan_vl"
)
_MODES: tuple[tuple[Mode, str], ...] = (
    ("normal", _NORMAL),
    ("neox", _NEOX),
    ("mrope", "qwen2vl paddleocr"),
    ("imrope", "qwen3vl qwen3vlmoe qwen35 qwen35moe"),
)

#: Architecture to pairing.
ARCHITECTURES: dict[str, Mode] = {name: mode for mode, names in _MODES for name in names.split()}

#: 'mrope' if the file has sections (both t and h above 0), else as in the table.
SECTIONS_DECIDE = frozenset({"glm4", "glm4moe", "hunyuan_vl"})

#: Without RoPE in llama.cpp.
NO_ROPE = frozenset(
    {"clip", "gpt2", "gptj", "mpt", "refact", "bloom", "mamba", "mamba2", "jamba", "jina-bert-v2", "t5", "t5encoder"}
    | {"jais", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "wavtokenizer-dec", "nemotron_h", "nemotron_h_moe"}
    | {"kimi-linear", "bert"}
)
#: Architectures in which `rope.scaling.finetuned` is a switch: false means no RoPE.
FINETUNED_IS_A_SWITCH = frozenset({"granite", "granitemoe", "granitehybrid"})

#: Architectures whose sliding-window layers have neither scaling nor factors; the value is the base of these layers
#: where the file has no `freq_base_swa`, None for the base of the full layers.
UNSCALED_SLIDING: dict[str, float | None] = {
    "gemma3": 10000.0,
    "gemma3n": 10000.0,
    "gemma-embedding": 10000.0,
    "gemma4": 10000.0,
    "olmo2": None,  # OLMo 3
    "laguna": None,
}
#: Architectures whose sliding-window layers are scaled as the full ones. In EXAONE only the sliding ones have RoPE.
SCALED_SLIDING = frozenset({"gpt-oss", "phi3", "exaone4", "exaone-moe"})

#: Converters of this line of models write a tenth of mscale_all_dim into `yarn_log_multiplier`; llama.cpp undoes it.
LOG_MULTIPLIER_IS_A_TENTH = frozenset({"deepseek2", "deepseek2-ocr", "deepseek32", "glm-dsa", "mistral4"})
#: Written as it is.
LOG_MULTIPLIER_AS_IT_IS = frozenset({"mistral3"})
