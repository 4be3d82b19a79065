"""Feed-forward blocks with gradients: the dense MLP, and routed experts with a bias that balances them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from paths.models.config import ModelConfig
from paths.models.train.parameters import EXPERTS_IN, EXPERTS_OUT, ROUTER_BIAS, Parameters


def mlp(p: Parameters, prefix: str, x: Tensor) -> Tensor:
    """x `[T, Dm]` through down(silu(gate) × up)."""
    gate = F.linear(x, p[f"{prefix}.gate_proj.weight"])
    up = F.linear(x, p[f"{prefix}.up_proj.weight"])
    return F.linear(F.silu(gate) * up, p[f"{prefix}.down_proj.weight"])


def route(p: Parameters, prefix: str, x: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Experts `[T, k]` of each row and their float32 weights, group-limited as the released models do."""
    scores = F.linear(x.float(), p[f"{prefix}.gate.weight"]).sigmoid()
    with torch.no_grad():
        biased = scores + p[f"{prefix}.gate.{ROUTER_BIAS}"]
        if config.n_group > 1:
            groups = biased.unflatten(-1, (config.n_group, -1))
            kept = groups.topk(2, dim=-1).values.sum(-1).topk(config.topk_group, dim=-1).indices
            mask = torch.ones(groups.shape[:-1], dtype=torch.bool, device=x.device).scatter(-1, kept, False)
            biased = groups.masked_fill(mask[..., None], -torch.inf).flatten(-2)
        chosen = biased.topk(config.num_experts_per_tok, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if config.norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-20)
    return chosen, weights * config.routed_scaling_factor


def experts(p: Parameters, prefix: str, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Σ of weight × expert over the chosen experts; rows are sorted by expert, so each is one matmul."""
    per_token = chosen.shape[-1]
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    rows = order.div(per_token, rounding_mode="floor")
    counts = torch.bincount(flat, minlength=p[f"{prefix}.{EXPERTS_IN}"].shape[0]).tolist()
    inputs = x.index_select(0, rows).split(counts)
    outputs = []
    ins, outs = p[f"{prefix}.{EXPERTS_IN}"].unbind(0), p[f"{prefix}.{EXPERTS_OUT}"].unbind(0)
    for values, w_in, w_out in zip(inputs, ins, outs, strict=True):
        gate, up = F.linear(values, w_in).chunk(2, dim=-1)
        outputs.append(F.linear(F.silu(gate) * up, w_out))
    scaled = torch.cat(outputs) * weights.flatten().index_select(0, order)[:, None].to(x.dtype)
    return torch.zeros_like(x).index_add(0, rows, scaled)


def feed_forward(
    p: Parameters,
    layer: int,
    x: Tensor,
    config: ModelConfig,
    loads: dict[str, Tensor],
    dense: Callable[[Parameters, str, Tensor], Tensor],
) -> Tensor:
    """The block of a layer for x `[T, Dm]`; the experts' loads are added to `loads`.

    dense: `mlp`, compiled or not.
    """
    prefix = f"model.layers.{layer}.mlp"
    if not config.is_moe(layer):
        return dense(p, prefix, x)
    chosen, weights = route(p, prefix, x, config)
    name = f"{prefix}.gate.{ROUTER_BIAS}"
    load = torch.bincount(chosen.flatten(), minlength=config.n_routed_experts)
    loads[name] = loads[name] + load if name in loads else load  # an MTP layer runs once per draft
    return experts(p, prefix, x, chosen, weights) + dense(p, f"{prefix}.shared_experts", x)


def balance(parameters: Parameters, loads: dict[str, Tensor], *, speed: float) -> None:
    """Raise the bias of experts below the mean load, lower the others (DeepSeek-V3 report, section 2.1.2)."""
    for name, load in loads.items():
        error = load.float().mean() - load.float()
        parameters[name] += speed * error.sign()
