"""The nano network: transformers' own Qwen3, with previous-token and induction heads laid into its initial weights.

Stock attention learns slowly that a token should know its predecessor, and without that it cannot copy. A stock layout can
start from there: one dimension of every embedding is the same constant, so that a query or key that reads only this
dimension depends on nothing but its position; rotary embedding then turns "key rotated by one position" into "attend to the
previous token". Layer 0 has such heads from step 0, and layer 1 compares a token with what they wrote: an induction head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

CONSTANT = 0
"""The embedding dimension that is equal for all tokens."""


def config(hidden: int = 128, layers: int = 4, ffn: int = 384) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=4096,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=ffn,
        head_dim=32,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        attention_dropout=0.0,
    )


def plain_attention(module, query, key, value, mask, scaling: float, **_) -> tuple[Tensor, None]:
    """Causal attention as two products and a softmax: at these sizes its backward is 5 times as fast as the CPU's fused one.

    query [batch, heads, length, dim], key and value [batch, kv heads, length, dim] -> [batch, length, heads, dim].
    """
    batch, heads, length, dim = query.shape
    grouped = (query * scaling).reshape(batch, key.shape[1], -1, length, dim)
    future = torch.full((length, length), float("-inf"), dtype=query.dtype).triu(1)
    shares = torch.softmax(grouped @ key.unsqueeze(2).transpose(-1, -2) + future, -1)
    if module.layer_idx == module.config.num_hidden_layers - 1:
        module.shares = shares  # the last layer's are trained on too, see train.losses
    return (shares @ value.unsqueeze(2)).reshape(batch, heads, length, dim).transpose(1, 2), None


AttentionInterface.register("nano_plain", plain_attention)


@torch.no_grad()
def build(cfg: Qwen3Config, seed: int, laid_in: bool = True) -> Qwen3ForCausalLM:
    """A fresh model in fp32. With `laid_in`, layers 0 and 1 start as previous-token and induction heads."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(cfg)
    model.set_attn_implementation("nano_plain")
    hidden = cfg.hidden_size
    for name, p in model.named_parameters():
        if p.ndim == 2:
            torch.nn.init.normal_(p, std=hidden**-0.5 if "embed" not in name else 0.05)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.zero_()
    if laid_in:
        _lay_in_previous_token(model)
        _lay_in_induction(model)
        for layer in model.model.layers[2:]:  # at gain 1 QK-norm caps a score at 5.7: too blunt to pick 1 of 300 tokens
            layer.self_attn.q_norm.weight.fill_(2.0)
            layer.self_attn.k_norm.weight.fill_(2.0)
    return model


def _lay_in_previous_token(model: Qwen3ForCausalLM) -> None:
    """Layer 0: query heads 0 and 1 (which share key head 0) look one and two tokens back, whatever the tokens are."""
    cfg, layer = model.config, model.model.layers[0].self_attn
    model.model.embed_tokens.weight[:, CONSTANT] = 0.2
    dim = cfg.head_dim
    frequency = cfg.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)
    loud = torch.zeros(dim // 2)
    loud[:6] = 4 * torch.tensor([1.0, 0.8, 0.6, 0.5, 0.4, 0.3])
    layer.k_proj.weight[:dim] = 0
    layer.k_proj.weight[: dim // 2, CONSTANT] = loud
    for head, back in ((0, 1.0), (1, 2.0)):
        rows = layer.q_proj.weight[head * dim : (head + 1) * dim]
        rows.zero_()
        rows[: dim // 2, CONSTANT] = loud * torch.cos(frequency * back)
        rows[dim // 2 :, CONSTANT] = -loud * torch.sin(frequency * back)
    gain = torch.ones(dim)
    gain[:6] = gain[dim // 2 : dim // 2 + 6] = 2.5
    layer.q_norm.weight.copy_(gain)
    layer.k_norm.weight.copy_(gain)
    layer.v_proj.weight[:dim] = _orthogonal(dim, cfg.hidden_size)
    layer.o_proj.weight[:, : 2 * dim] = 0.1 * _orthogonal(2 * dim, cfg.hidden_size).T  # as loud as an embedding


def _lay_in_induction(model: Qwen3ForCausalLM) -> None:
    """Layer 1: query head 0 seeks positions whose previous token (as head 0 of layer 0 wrote it) is the current token."""
    cfg = model.config
    below, layer = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    dim = cfg.head_dim
    seen = below.v_proj.weight[:dim].clone()  # what of a token is written
    seen[:, CONSTANT] = 0
    where = below.o_proj.weight[:, :dim].T * 10  # where it is written
    before = below.o_proj.weight[:, dim : 2 * dim].T * 10  # where the token two back is written
    quiet = torch.ones(dim)
    quiet[:6] = quiet[dim // 2 : dim // 2 + 6] = 0.1  # the fast rotary pairs would blur a match at a distance
    groups = cfg.num_attention_heads // cfg.num_key_value_heads
    for pair, (query, key) in enumerate(((seen, where), (where, before))):
        head = pair * groups
        layer.q_proj.weight[head * dim : (head + 1) * dim] = 4 * query
        layer.k_proj.weight[pair * dim : (pair + 1) * dim] = 4 * key
        copied = _orthogonal(dim, cfg.hidden_size)
        layer.v_proj.weight[pair * dim : (pair + 1) * dim] = copied
        layer.o_proj.weight[:, head * dim : (head + 1) * dim] = 0.25 * copied.T
    layer.q_norm.weight.copy_(quiet * 3)
    layer.k_norm.weight.copy_(quiet * 3)
    model.model.norm.weight.fill_(2.0)


def _orthogonal(rows: int, columns: int) -> Tensor:
    """float32 [rows, columns] with orthonormal rows."""
    return torch.linalg.qr(torch.randn(columns, rows))[0].T.contiguous()
