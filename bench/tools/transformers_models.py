"""How each model type of the installed transformers rotates: `python bench/tools/transformers_models.py`.

Writes `clrope/io/data/hf_models.json`. Nothing is downloaded and no model is built: for each model type the
configuration class is made with its defaults and with one key changed at a time, the rotary class is built from it, and
the model's own function rotates unit vectors. So pairing, sizes, bases, defaults and the keys that are read are what
transformers does.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import importlib
import inspect
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clrope.io.hf_axial import MODELS as AXIAL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import transformers

    _auto: Any = importlib.import_module("transformers.models.auto.configuration_auto")
    MODEL_MAPPING_NAMES = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES
CONFIG_MAPPING_NAMES: dict[str, str] = _auto.CONFIG_MAPPING_NAMES
model_type_to_module_name: Callable[[str], str] = _auto.model_type_to_module_name

ROOT = Path(__file__).parents[2]
OUT = ROOT / "clrope/io/data/hf_models.json"
_ROTARY = re.compile("(Rotary(Positional)?|Rope(Position)?)Embedding$")
_APPLY = re.compile("apply_rotary")
#: Names in configuration classes and in published files.
THETA_KEYS = (
    *("rope_theta", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta"),
    *("swa_rope_theta", "rotary_embedding_base"),
)
SHARE_KEYS = ("partial_rotary_factor", "rotary_pct")
HEAD_KEYS = ("head_dim", "kv_channels", "attention_head_dim")
#: Sizes that are nobody's defaults.
ODD_SIZES = {"hidden_size": 832, "num_attention_heads": 8}
_LABELS = ("sliding_attention", "full_attention")

_AXIAL = "its positions are rows and columns of patches"
_SECTIONS_OF_NEIGHBOURS = "it combines mrope_section with neighbouring pairs (2i, 2i + 1)"
#: Known, and not one of the five modes, or not decided by the configuration.
REFUSED = {
    "glm4v_text": _SECTIONS_OF_NEIGHBOURS,
    "glm_ocr_text": _SECTIONS_OF_NEIGHBOURS,
    "ernie4_5_vl_moe_text": "it alternates h and w between neighbouring pairs",
    "hunyuan_vl_text": "its multi-axis sections count elements of both halves",
    "nanochat": "it rotates in the opposite direction",
    "deepseek_v4": "it rotates the last elements of the head, which takes n_offs",
    "neomme": "rows and columns of positions alternate between its pairs",
    "mistral_large4_text": "learned weights scale its frequencies",
    "musicflamingo": "its positions are times in seconds",
    "clvp_encoder": "it rotates values, too",
    "esmfold2": "its positions are three coordinates of atoms",
    "efficientloftr": "its positions are rows and columns of an image",
    "qwen2_5_omni_dit": "it rotates one head only",
    "hy_v4_vl_text": _SECTIONS_OF_NEIGHBOURS,
    "dots3_note_text": "its sliding layers have slices of a size of their own",
    "gemma4_vision": "it rotates the two halves of a head apart, one by rows and one by columns",
    "dinov3_vit": _AXIAL,
    "eomt_dinov3": _AXIAL,
    "sapiens2": _AXIAL,
    "llama4_vision_model": _AXIAL,
    "vjepa2": "its positions are frames, rows and columns of patches",
    "glm5_next_text": "it has no RoPE",
    "jamba": "it has no RoPE",
    "nemotron_h": "it has no RoPE",
}
_FIXED = {"plain": True, "theta_key": None, "partial_key": None}
#: Model types without `rope_parameters`; the tests compare them with transformers, too.
WITHOUT_PARAMETERS: dict[str, dict[str, Any]] = {
    "gptj": {**_FIXED, "mode": "normal", "size_keys": ["n_embd", "n_head"], "rotary_dim_key": "rotary_dim"},
    "codegen": {**_FIXED, "mode": "normal", "size_keys": ["n_embd", "n_head"], "rotary_dim_key": "rotary_dim"},
    "roformer": {**_FIXED, "mode": "normal"},
    "esm": {"mode": "neox", "plain": True, "only_if": ["position_embedding_type", "rotary"]},
    **{
        name: {
            "mode": "neox",
            "plain": True,
            "theta_key": "rotary_embedding_base",
            "only_if": ["position_embeddings_type", "rotary"],
        }
        for name in ("wav2vec2-bert", "wav2vec2-conformer")
    },
    "seamless_m4t": {
        "mode": "neox",
        "plain": True,
        "theta_key": "rotary_embedding_base",
        "size_keys": ["hidden_size", "speech_encoder_attention_heads"],
        "only_if": ["position_embeddings_type", "rotary"],
    },
}
#: Their classes refuse parameters without sections.
SECTIONED = {"cosmos3_edge_text"}
#: What the classes read only where the file has no `rope_parameters`.
_LISTS = {"theta": 10000.0, "theta_key": "rope_theta", "partial": 1.0, "partial_key": "partial_rotary_factors"}
OVERRIDES: dict[str, dict[str, Any]] = {
    "cohere2_moe": {"theta": 10000.0, "theta_key": "rope_theta", "params": None},
    "step3p5": {"layers": {"full_attention": _LISTS, "sliding_attention": _LISTS}, "older_only": True},
    **{name: {"unread": ["rotary_dim"]} for name in ("minimax", "minimax_m3_vl_text")},
    "cosmos3_edge_text": {"head_keys": ["head_dim"]},
}
#: RoPE is there only if a root key has this value.
SWITCHES = {"granitemoehybrid": ["position_embedding_type", "rope"], "zamba2": ["use_mem_rope", True]}


@dataclasses.dataclass(frozen=True)
class Family:
    """A model type: its configuration class, its rotary class, and the function that rotates q and k."""

    model_type: str
    config: type
    rotary: type
    apply: Callable[..., Any]

    def build(self, **options: Any) -> Any:
        return self.config(**copy.deepcopy(options))

    def module(self, config: Any) -> Any:
        return self.rotary(config)


def tables(family: Family, config: Any) -> dict[str | None, tuple[np.ndarray, float]]:
    """Return (inverse frequencies in float64, factor of cos and sin) of each layer type, None where there is one."""
    module = family.module(config)
    result = {}
    for name, buffer in module.named_buffers():
        if name.endswith("inv_freq") and "original" not in name:
            layer = name.removesuffix("inv_freq").removesuffix("_") or None
            scaling = getattr(module, "attention_scaling" if layer is None else f"{layer}_attention_scaling")
            result[layer] = buffer.double().numpy(), float(scaling)
    return result


def cos_sin(family: Family, config: Any, layer: str | None, positions: Any) -> Any:
    """Return what the rotary class computes for positions [S], or [3, S]: cos and sin, or complex numbers."""
    where = torch.as_tensor(np.asarray(positions))
    where = where[:, None] if where.ndim == 2 else where[None]
    return family.module(config)(torch.zeros(1, 1), where, **({} if layer is None else {"layer_type": layer}))


def rotated_units(family: Family, config: Any, layer: str | None, positions: Any, size: int) -> np.ndarray:
    """Return the model's rotation of the unit vectors of a head: [unit, position, element]."""
    turn = cos_sin(family, config, layer, positions)
    turn = turn if isinstance(turn, tuple) else (turn,)
    units = torch.eye(size)[None, :, None].expand(1, size, np.shape(positions)[-1], size).contiguous()
    for by_token in (False, True):
        x = units.transpose(1, 2) if by_token else units
        for arguments in ((x, x, *turn), (x, *turn)):
            try:
                result = family.apply(*arguments)
            except (RuntimeError, TypeError, IndexError, ValueError):
                continue
            result = result[0] if isinstance(result, tuple) else result
            if result.shape == x.shape:
                turned: np.ndarray = (result.transpose(1, 2) if by_token else result)[0].double().numpy()
                return turned
    raise ValueError(f"{family.model_type}: {family.apply.__name__} takes no head of {size} elements")


def units_by_rule(angle: np.ndarray, size: int, mode: str) -> np.ndarray:
    """The same by the rule of a mode ('neox', 'normal', or 'apart': neighbours, stored as halves); angle [S, pairs]."""
    pairs = angle.shape[1]
    first = np.arange(pairs) * (1 if mode == "neox" else 2)
    second = first + (pairs if mode == "neox" else 1)
    to_first, to_second = (np.arange(pairs), np.arange(pairs) + pairs) if mode == "apart" else (first, second)
    out = np.broadcast_to(np.eye(size)[:, None], (size, len(angle), size)).copy()
    out[: 2 * pairs] = 0
    cos, sin = np.cos(angle).T, np.sin(angle).T
    for i in range(pairs):
        out[first[i], :, to_first[i]], out[second[i], :, to_first[i]] = cos[i], -sin[i]
        out[first[i], :, to_second[i]], out[second[i], :, to_second[i]] = sin[i], cos[i]
    return out


def pairing(
    family: Family, config: Any, layer: str | None, positions: Any = (1, 2, 3), tolerance: float = 1e-4
) -> tuple[str, int]:
    """Return the rule that the model's function follows at these positions, and the size of the head it was given."""
    frequencies, scaling = tables(family, config)[layer]
    positions = np.asarray(positions)
    for size in (_head_size(config, layer), 2 * len(frequencies)):
        try:
            got = rotated_units(family, config, layer, positions, size)
        except (ValueError, AssertionError):
            continue
        for mode in ("neox", "normal", "apart"):
            want = units_by_rule(positions[:, None] * frequencies, size, mode)
            turned = 2 * len(frequencies)
            want[:turned, :, :turned] *= scaling
            if np.abs(got - want).max() < tolerance:
                return mode, size
    return "none", 0


def _head_size(config: Any, layer: str | None) -> int:
    if layer is not None and getattr(config, "is_heterogeneous", False):
        config = config.per_layer_config[layer]
    size = getattr(config, "head_dim", None)
    return int(size or config.hidden_size // config.num_attention_heads)


@functools.cache
def families() -> dict[str, Family]:
    """Return every model type with a rotary class, by name."""
    logging.disable(logging.CRITICAL)
    result: dict[str, Family] = {}
    for path in sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        text = path.read_text(encoding="utf-8")
        if any(map(_ROTARY.search, re.findall(r"^class (\w+)", text, re.MULTILINE))):
            for family in _families_of(f"transformers.models.{path.parent.name}.{path.stem}", ast.parse(text)):
                result.setdefault(family.model_type, family)
    for model_type, name in MODEL_MAPPING_NAMES.items():  # configurations of models that another folder has
        if model_type in result or not isinstance(name, str):
            continue
        owner = next((f for f in result.values() if hasattr(_module(f.config, "modeling"), name)), None)
        if owner is not None and CONFIG_MAPPING_NAMES[model_type] != owner.config.__name__:
            package = importlib.import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
            config = getattr(package, CONFIG_MAPPING_NAMES[model_type])
            if _module(config, "modeling") is None:
                result[model_type] = dataclasses.replace(owner, model_type=model_type, config=config)
    return result


def _module(config: type, kind: str) -> Any:
    try:
        return importlib.import_module(config.__module__.replace(".configuration_", f".{kind}_"))
    except ImportError:
        return None


def _families_of(module_name: str, tree: ast.Module) -> Iterator[Family]:
    """Families in a module: classes that make a rotary class from their own, annotated, `config`."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    rotary = {name for name in classes if _ROTARY.search(name)}
    module = importlib.import_module(module_name) if rotary else None
    for node in classes.values():
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        made = {ast.unparse(n.func) for n in ast.walk(init) if isinstance(n, ast.Call)} & rotary if init else set()
        for name in made:
            config = _annotated(module, init) or _annotated(module, _init_of(classes[name]))
            model_type = getattr(config, "model_type", "")
            apply = _function(module, classes, name)
            whole = "text_config" in getattr(config, "sub_configs", {}) and model_type not in REFUSED
            if config is not None and model_type and apply is not None and not whole:
                yield Family(model_type, config, getattr(module, name), apply)


def _init_of(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)


def _annotated(module: Any, init: ast.FunctionDef | None) -> Any:
    for argument in init.args.args if init else ():
        if argument.arg == "config" and argument.annotation is not None:
            found = getattr(module, ast.unparse(argument.annotation).strip("'\""), None)
            # T5Gemma annotates the whole, and gives a part.
            return getattr(module, "T5GemmaModuleConfig", found) if found is not None else None
    return None


def _function(module: Any, classes: Mapping[str, ast.ClassDef], rotary: str) -> Callable[..., Any] | None:
    """The function that attention classes call; of several the one of neighbouring pairs, as an indexer has another."""
    part = next((word for word in ("Vision", "Audio", "ViT") if word in rotary), None)
    names: set[str] = set()
    for name, node in classes.items():
        if "Indexer" in name or (part or "") not in name or (part is None and re.search("Vision|Audio|ViT", name)):
            continue
        names |= {
            ast.unparse(n.func).removeprefix("self.")
            for n in ast.walk(node)
            if isinstance(n, ast.Call) and _APPLY.search(ast.unparse(n.func)) and len(ast.unparse(n.func)) < 60
        }
    functions = [name for name in sorted(names, key=len, reverse=True) if hasattr(module, name)]
    return getattr(module, functions[0]) if functions else None


# ---- one row of the table --------------------------------------------------------------------------------------------


class Probe:
    """Configurations of one family with single keys changed, and what changes in its tables."""

    def __init__(self, family: Family) -> None:
        self.family = family
        first = family.build()
        declared = _parameters(first)
        nested = [name for name, value in declared.items() if isinstance(value, Mapping) or value is None]
        #: Names of layer types with parameters of their own, () for one RoPE.
        self.layers = tuple(sorted(set(nested) | (set(_LABELS) if nested == ["full_attention"] else set())))
        if family.model_type == "cohere_compass_text":
            self.layers = _LABELS
        self.base: dict[str, Any] = {}
        if self.layers:
            order = sorted(self.layers, key=lambda name: name.startswith(("full", "indexed")))
            self.base = {"layer_types": order, "num_hidden_layers": len(order), "sliding_window": 64}

    def config(self, parameters: Mapping[str, Any] | None = None, **options: Any) -> Any:
        if parameters is not None:
            if self.family.model_type in SECTIONED:
                parameters = {**parameters, "mrope_section": [24, 20, 20]}
            per_layer = {name: dict(parameters) for name in self.layers}
            options["rope_parameters"] = per_layer or dict(parameters)
        return self.family.build(**self.base, **options)

    def sizes(self, parameters: Mapping[str, Any] | None = None, **options: Any) -> dict[str | None, int]:
        """Rotated elements of each layer type; {} where transformers refuses."""
        try:
            made = tables(self.family, self.config(parameters, **options))
        except Exception:
            return {}
        return {layer: 2 * len(frequencies) for layer, (frequencies, _) in made.items()}

    def values(self, key: str, parameters: Mapping[str, Any] | None, **options: Any) -> dict[str | None, Any]:
        """A rope parameter of each layer type, as the configuration class completes it."""
        try:
            made = _parameters(self.config(parameters, **options))
        except Exception:
            return {}
        if not self.layers:
            return {None: made.get(key)}
        return {name: (made.get(name) or {}).get(key) for name in self.layers}


def _parameters(config: Any) -> dict[str, Any]:
    return dict(getattr(config, "rope_parameters", None) or {})


WHOLE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
HALF = {**WHOLE, "partial_rotary_factor": 0.5}
PLAIN = {"rope_type": "default"}


def row(family: Family) -> dict[str, Any]:
    """Return the row of the table: fields of `clrope.io.hf_models.ModelKind`, without those that are as by default."""
    probe = Probe(family)
    fields: dict[str, Any] = {**_head(probe), "mode": _mode(probe)}
    partial = probe.sizes(HALF) != probe.sizes(WHOLE)
    per_layer: dict[str | None, dict[str, Any]] = {}
    for layer in probe.layers or (None,):
        theta = probe.values("rope_theta", PLAIN).get(layer)
        keys = [k for k in THETA_KEYS if probe.values("rope_theta", PLAIN, **{k: 54321.0}).get(layer) == 54321.0]
        one: dict[str, Any] = {"theta": theta, "theta_key": keys[0] if keys else None}
        if partial:
            one["partial"] = _share(probe, layer)
            one["partial_key"] = _share_key(probe, layer)
            if (plain := _plain_share(probe, layer)) not in (1.0, one["partial"]):
                one["plain_partial"] = plain
        per_layer[layer] = one
    if probe.layers:
        fields["layers"] = {str(layer): one for layer, one in per_layer.items()}
        fields["scaled"] = _scaled_layers(probe)
    else:
        fields |= per_layer[None]
        if probe.values("factor", None, rope_scaling={"rope_type": "linear", "factor": 2.0}) == {None: None}:
            fields["scaled"] = []
    return fields | _defaults(probe, fields) | _quirks(probe) | OVERRIDES.get(family.model_type, {})


def _mode(probe: Probe) -> str:
    config = probe.config(WHOLE) if probe.layers else probe.config(**ADJUST.get(probe.family.model_type, {}))
    layer = next(iter(tables(probe.family, config)))
    rule, _ = pairing(probe.family, config, layer)
    module = probe.family.module(config)
    sections = getattr(module, "mrope_section", None)
    if sections is None:
        return "neox" if rule == "neox" else "normal" if rule in ("normal", "apart") else rule
    if rule != "neox":
        return "none"
    # Which of three rows of positions drives each pair.
    positions = np.zeros((3, 1))
    positions[1] = 1.0
    cos = cos_sin(probe.family, config, layer, positions)[1][0, 0]
    moved = (cos[: len(cos) // 2] != 0).numpy()
    return "mrope" if moved[np.flatnonzero(moved)[0] + 1] else "imrope"


#: What a model type's default configuration needs to be one that its own classes take.
ADJUST: dict[str, dict[str, Any]] = {
    "glm4v_moe_text": {"head_dim": 128},
    "glm4_moe": {"head_dim": 128},
    "glm4v_text": {"partial_rotary_factor": 0.5},
    "glm_image_text": {"partial_rotary_factor": 0.5},
    "hunyuan_vl_text": {"rope_parameters": {"mrope_section": [16, 16, 16, 16]}},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "qwen4_exp_text": {"partial_rotary_factor": 0.25},
    "cohere_compass_text": {
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": 10000.0} for name in _LABELS},
    },
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "zamba2": {"use_mem_rope": True},
    "esm": {"position_embedding_type": "rotary"},
    **{
        name: {"position_embeddings_type": "rotary"} for name in ("wav2vec2-bert", "wav2vec2-conformer", "seamless_m4t")
    },
}


def _head(probe: Probe) -> dict[str, Any]:
    """How the size of a head, or of the slice that is rotated, is found."""
    names = getattr(probe.family.config, "attribute_map", {})
    width, heads = (names.get(key, key) for key in ODD_SIZES)
    length = names.get("max_position_embeddings", "max_position_embeddings")
    odd = {width: ODD_SIZES["hidden_size"], heads: ODD_SIZES["num_attention_heads"]}
    fields: dict[str, Any] = {"size_keys": [width, heads], "length_key": length}
    config = probe.config()
    if hasattr(config, "qk_rope_head_dim"):
        fields |= {"mla": True, "head_dim": config.qk_rope_head_dim}
        return fields | ({"share_of_whole": True} if config.head_dim != config.qk_rope_head_dim else {})
    read = [key for key in HEAD_KEYS if 56 in probe.sizes(WHOLE, **odd, **{key: 56}).values()]
    fields["head_keys"] = read
    size = probe.sizes(WHOLE, **odd)
    quotient = odd[width] // odd[heads]
    if set(size.values()) == {2 * quotient}:
        fields["size_factor"] = 2
    elif set(size.values()) != {quotient}:
        full = size.get("full_attention")
        if probe.layers and 40 in probe.sizes(WHOLE, **odd, global_head_dim=40).values():
            fields["full_head_dim"] = ["global_head_dim", full]
            size.pop("full_attention")
        fields["head_dim"] = next(iter(size.values()), None)
    return fields


def _share(probe: Probe, layer: str | None) -> float | None:
    share = probe.values("partial_rotary_factor", PLAIN).get(layer)
    return 1.0 if share is None else share


def _plain_share(probe: Probe, layer: str | None) -> float:
    """The rotary class's own default, which it has for type 'default' only."""
    with_theta = {"rope_type": "default", "rope_theta": 10000.0}
    whole, part = (probe.sizes(params, head_dim=2000).get(layer, 1) for params in (WHOLE, with_theta))
    return part / whole


def _share_key(probe: Probe, layer: str | None) -> str | None:
    for key in SHARE_KEYS:
        if probe.values("partial_rotary_factor", PLAIN, **{key: 0.125}).get(layer) == 0.125:
            return key
    return None


def _scaled_layers(probe: Probe) -> list[str]:
    """The layer types that `rope_scaling` at the root is for."""
    scaling = {"rope_type": "linear", "factor": 2.0}
    return [str(layer) for layer, factor in probe.values("factor", None, rope_scaling=scaling).items() if factor]


def _defaults(probe: Probe, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that a file without any has, where they are more than the bases."""
    made = _parameters(probe.config())

    def usual(given: Any, own: Mapping[str, Any]) -> bool:
        expected = {"rope_type": "default", "rope_theta": own["theta"]}
        return {**expected, "partial_rotary_factor": own.get("partial")} == {
            **dict(given or {}),
            "partial_rotary_factor": (given or {}).get("partial_rotary_factor", own.get("partial")),
        }

    sections = made.pop("mrope_section", None)
    found: dict[str, Any] = {}
    if sections is None:
        config = probe.config(WHOLE) if probe.layers else probe.config(**ADJUST.get(probe.family.model_type, {}))
        sections = getattr(probe.family.module(config), "mrope_section", None)
        sections = next(iter(sections.values())) if isinstance(sections, dict) else sections
    if sections is not None:
        found["sections"] = list(sections)
    layers = fields.get("layers")
    same = all(usual(made.get(name), own) for name, own in layers.items()) if layers else usual(made, fields)
    if probe.values("rope_theta", None, rope_theta=54321.0).get(None) == made.get("rope_theta") and not layers:
        same = same and fields["theta_key"] != "rope_theta"
    if not same and made:
        made.pop("type", None)
        made.pop("max_position_embeddings", None)
        if fields.get("mla"):
            made.pop("partial_rotary_factor", None)
        found["params"] = made
    return found


def _quirks(probe: Probe) -> dict[str, Any]:
    family = probe.family
    fields: dict[str, Any] = {}
    config = probe.config()
    if hasattr(config, "rope_interleave") and family.apply.__name__ == "apply_rotary_pos_emb_interleave":
        source = inspect.getsource(inspect.getmodule(family.rotary))  # type: ignore[arg-type]
        if "config.rope_interleave" in source:
            fields["interleave_key"] = "rope_interleave"
    if not probe.layers and family.model_type not in WITHOUT_PARAMETERS:
        pairs = next(iter(probe.sizes().values())) // 2
        lists = {"short_factor": [1.0] * pairs, "long_factor": [1.0] * pairs, "original_max_position_embeddings": 64}
        if probe.values("rope_type", {"rope_type": "yarn", "factor": 2.0, **lists}).get(None) == "longrope":
            fields["yarn_is_longrope"] = True
    original = getattr(config, "original_max_position_embeddings", None)
    if original is not None and not fields.get("params"):
        fields["original"] = original
    ignored = set(getattr(config, "ignore_keys_at_rope_validation", None) or ())
    if "llama_4_scaling_beta" in ignored:
        fields["ignored"] = ["llama_4_scaling_beta", "max_position_embeddings"]
    if hasattr(family.rotary, "compute_ntk_alpha_rope_parameters"):
        fields["ntk_alpha"] = True
    if "long_mscale" in inspect.getsource(family.rotary):
        fields["mscales"] = True
    for key in ("rotary_dim",):
        changed = probe.sizes(PLAIN, **{key: 32})
        if changed and changed != probe.sizes(PLAIN):
            fields["rotary_dim_key"] = key
    if hasattr(config, "layer_rope_theta"):
        source = inspect.getsource(inspect.getmodule(family.rotary))  # type: ignore[arg-type]
        fields["layer_theta_is_base"] = "theta_config" in source
    if family.model_type in SWITCHES:
        fields["only_if"] = SWITCHES[family.model_type]
    return fields


def _parts() -> dict[str, dict[str, str]]:
    """Model types of the configurations inside others, where a file may leave them out: outer type, key, inner type."""
    known = {*families(), *WITHOUT_PARAMETERS, *REFUSED}
    inner: dict[str, dict[str, str]] = {}
    for model_type, name in sorted(CONFIG_MAPPING_NAMES.items()):
        package = importlib.import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
        config: Any = getattr(package, name, None)
        keys = getattr(config, "sub_configs", {})
        try:
            made = config() if keys else None
        except Exception:
            continue
        types = {key: getattr(getattr(made, key, None), "model_type", None) for key in keys}
        inner[model_type] = {key: kind for key, kind in types.items() if kind}
    has_rope: set[str] = set(known)
    while more := {name for name, keys in inner.items() if name not in has_rope and has_rope & set(keys.values())}:
        has_rope |= more
    has_rope -= {name for name, family in families().items() if family.model_type in REFUSED or _is_axial(family)}
    kept = {name: {key: kind for key, kind in keys.items() if kind in has_rope} for name, keys in inner.items()}
    return {name: keys for name, keys in kept.items() if keys}


def _flat(parts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The model types that take the keys of their `text_config` at the root, as older files have them."""
    flat = []
    for model_type in sorted(name for name, keys in parts.items() if "text_config" in keys):
        try:
            config = transformers.AutoConfig.for_model(model_type, **ODD_SIZES)
        except Exception:
            continue
        if getattr(config.text_config, "hidden_size", None) == ODD_SIZES["hidden_size"]:
            flat.append(model_type)
    return flat


def _is_axial(family: Family) -> bool:
    return getattr(family.config, "default_rope_type", "default") == "axial"


def table() -> dict[str, Any]:
    """Return the content of the file."""
    models: dict[str, dict[str, Any]] = {name: dict(fields) for name, fields in WITHOUT_PARAMETERS.items()}
    refused = dict(REFUSED)
    for name, family in families().items():
        if name in REFUSED or name in WITHOUT_PARAMETERS or name in AXIAL:
            continue
        if _is_axial(family):
            refused[name] = _AXIAL
            continue
        fields = row(family)
        if fields["mode"] == "none":
            raise ValueError(f"{name}: its function follows no known rule; give the reason in REFUSED")
        models[name] = fields
    usual = {
        "theta": 10000.0, "theta_key": "rope_theta", "partial_key": "partial_rotary_factor", "partial": None,
        "size_keys": ["hidden_size", "num_attention_heads"], "head_keys": ["head_dim"], "head_dim": None,
        "params": None, "length_key": "max_position_embeddings",
    }  # fmt: skip
    for name, fields in models.items():
        models[name] = {key: value for key, value in fields.items() if key not in usual or usual[key] != value}
    parts = _parts()
    return {
        "transformers": transformers.__version__,
        "models": dict(sorted(models.items())),
        "refused": dict(sorted((n, why) for n, why in refused.items() if n in families() or n in CONFIG_MAPPING_NAMES)),
        "parts": parts,
        "flat": _flat(parts),
    }


def text_of(content: Mapping[str, Any]) -> str:
    """JSON with one line for each model type."""
    parts = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            lines = ",\n".join(
                f"    {json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in value.items()
            )
            parts.append(f'  "{key}": {{\n{lines}\n  }}')
        else:
            parts.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    OUT.write_text(text_of(table()), encoding="utf-8")
