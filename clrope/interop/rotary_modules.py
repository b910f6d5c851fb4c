"""Exact cos and sin in place of those that a model's rotary modules compute in float32: the operator `clrope::cos_sin`.

A rotary module makes cos and sin from position_ids once for all layers. `RopeConfig.from_hf` reads its configuration,
which is compared with what the module computes at small positions; that also tells the form of its tables.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from ..config import RopeConfig
from ..errors import ConfigError
from ..operation import Rope
from .torch_rotate import check_memory, parsed_config

#: Where the columns of a pair are: one column; i and i + pairs; 2i and 2i + 1.
Form = Literal["pair", "halves", "neighbours"]

#: What float32 angles may be off by at the positions that are compared.
_TOLERANCE = 1e-4
_POSITIONS = ((0, 1, 2, 5, 17), (3, 40, 41, 80, 99))
_INV_FREQ = "inv_freq"


class ExactTables(NamedTuple):
    """What a rotary module is to compute: a configuration as JSON for each layer type (None: one for all)."""

    configs: dict[str | None, str]
    form: Form
    sections: bool
    keeps_dtype: bool


def rotary_modules(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a model that make cos and sin from position_ids and frequencies, with their names."""
    for name, module in model.named_modules():
        buffers = (key for key, _ in module.named_buffers(recurse=False))
        if any(key.endswith(_INV_FREQ) for key in buffers) and not list(module.children()):
            yield name, module


def exact_tables(module: Any) -> ExactTables:
    """Return what a rotary module computes, from its configuration; `ConfigError` says why this is not known."""
    names = list(inspect.signature(module.forward).parameters)
    if "position_ids" not in names[:2] or not hasattr(module, "config"):
        raise ConfigError("its forward takes no position_ids, or it has no configuration")
    buffers = [key for key, _ in module.named_buffers(recurse=False) if "original" not in key]
    layer_types: list[str | None] = [None]
    if "layer_type" in names:
        layer_types = [key.removesuffix(f"_{_INV_FREQ}") for key in buffers if key.endswith(f"_{_INV_FREQ}")]
    configs = {layer: RopeConfig.from_hf(module.config, layer_type=layer) for layer in layer_types}
    forms = {_form(module, config, layer) for layer, config in configs.items()}
    if len(forms) != 1 or len({config.uses_sections for config in configs.values()}) != 1:
        raise ConfigError("its layer types have cos and sin of different forms")
    positions = torch.tensor(_POSITIONS)
    narrow = _own(module, torch.zeros(1, 1, dtype=torch.bfloat16), positions, layer_types[0])
    return ExactTables(
        {layer: json.dumps(config.to_dict()) for layer, config in configs.items()},
        forms.pop(), next(iter(configs.values())).uses_sections, narrow[0].dtype == torch.bfloat16,
    )  # fmt: skip


def _form(module: Any, config: RopeConfig, layer: str | None) -> Form:
    positions = torch.tensor(_POSITIONS)
    if config.uses_sections:
        positions = torch.stack([positions, positions + 7, 2 * positions])
    own = _own(module, torch.zeros(1, 1), positions, layer)
    cos, sin = _cos_sin(positions, config=json.dumps(config.to_dict()))
    for form in get_args(Form):
        ours = [_columns(table, form) for table in (cos, sin)]
        if all(a.shape == b.shape and (a - b).abs().max() <= _TOLERANCE for a, b in zip(ours, own, strict=True)):
            return cast(Form, form)
    raise ConfigError("its cos and sin are not those of its configuration")


def _own(module: Any, x: Tensor, positions: Tensor, layer: str | None) -> tuple[Tensor, Tensor]:
    try:
        with torch.no_grad():
            made = module.forward(x, positions, **({} if layer is None else {"layer_type": layer}))
    except Exception as error:  # whatever a model's code raises
        raise ConfigError(f"its forward fails at small positions: {type(error).__name__}") from error
    if not isinstance(made, tuple) or len(made) != 2 or not all(isinstance(table, Tensor) for table in made):
        raise ConfigError("its forward does not return cos and sin")
    return made


def exact_forward(module: Any, tables: ExactTables, device: str | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return what takes the place of the module's forward."""
    names = tuple(inspect.signature(module.forward).parameters)
    configs, form, sections, keeps_dtype = tables

    def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        x, positions = given[names[0]], given["position_ids"]
        if sections and positions.dim() == 2:
            positions = positions.expand(3, -1, -1)
        config = configs[given["layer_type"] if None not in configs else None]
        made = torch.ops.clrope.cos_sin(positions, config=config, device=device)
        cos, sin = (_columns(table, form) for table in made)
        return (cos.to(x.dtype), sin.to(x.dtype)) if keeps_dtype else (cos, sin)

    return forward


def _columns(table: Tensor, form: Form) -> Tensor:
    if form == "pair":
        return table
    return torch.cat([table, table], -1) if form == "halves" else table.repeat_interleave(2, -1)


@torch.library.custom_op(
    "clrope::cos_sin", mutates_args=(), schema="(Tensor positions, *, str config, str? device=None) -> (Tensor, Tensor)"
)
def _cos_sin(positions: Tensor, *, config: str, device: str | None = None) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32 [..., pairs], at positions [...], in section modes [3, ...] or [4, ...]."""
    check_memory("position_ids", positions)
    parsed = parsed_config(config)
    rows = positions.reshape(positions.shape[0], -1) if parsed.uses_sections else positions.reshape(-1)
    cos, sin = (torch.from_numpy(t) for t in Rope(parsed, device).cos_sin(rows.numpy()))
    shape = _shape(positions, parsed)
    return cos.reshape(shape), sin.reshape(shape)


@_cos_sin.register_fake
def _cos_sin_fake(positions: Tensor, *, config: str, device: str | None = None) -> tuple[Tensor, Tensor]:
    shape = _shape(positions, parsed_config(config))
    return positions.new_empty(shape, dtype=torch.float32), positions.new_empty(shape, dtype=torch.float32)


def _shape(positions: Tensor, config: RopeConfig) -> list[int]:
    return [*positions.shape[1 if config.uses_sections else 0 :], config.n_pairs(None)]
