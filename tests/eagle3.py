"""EAGLE-3 in plain torch: whole sequences, no cache, one function for each formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

SIZES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "vocab_size": 130,
    "draft_vocab_size": 70,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def weights(config: dict[str, Any], seed: int = 0, embedding: bool = True) -> dict[str, Tensor]:
    """A head's tensors under the names that published heads have, seeded."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(out: int, size: int) -> Tensor:
        return torch.randn(out, size, generator=generator) * 1.5 / size**0.5

    def norm(size: int) -> Tensor:
        return 1 + 0.25 * torch.randn(size, generator=generator)

    vocab, width = config["vocab_size"], config["hidden_size"]
    known = config.get("draft_vocab_size") or vocab
    head_dim = config.get("head_dim") or width // config["num_attention_heads"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    inner = config["intermediate_size"]
    ids = torch.randperm(vocab, generator=generator)[:known].sort().values
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[ids] = True
    found = {
        "midlayer.self_attn.q_proj.weight": matrix(heads * head_dim, 2 * width),
        "midlayer.self_attn.k_proj.weight": matrix(kv_heads * head_dim, 2 * width),
        "midlayer.self_attn.v_proj.weight": matrix(kv_heads * head_dim, 2 * width),
        "midlayer.self_attn.o_proj.weight": matrix(width, heads * head_dim),
        "midlayer.mlp.gate_proj.weight": matrix(inner, width),
        "midlayer.mlp.up_proj.weight": matrix(inner, width),
        "midlayer.mlp.down_proj.weight": matrix(width, inner),
        "midlayer.hidden_norm.weight": norm(width),
        "midlayer.input_layernorm.weight": norm(width),
        "midlayer.post_attention_layernorm.weight": norm(width),
        "norm.weight": norm(width),
        "fc.weight": matrix(width, 3 * (config.get("target_hidden_size") or width)),
        "lm_head.weight": matrix(known, width),
        "d2t": ids - torch.arange(known),
        "t2d": t2d,
    }
    return found | ({"embed_tokens.weight": matrix(vocab, width)} if embedding else {})


def save(path: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path / "model.safetensors", {"format": "pt"})
    return path


class Reference:
    """A head, by its tensors in float64.

    Args:
        config: as in config.json.
        tensors: as on disk.
        embedding: the target's, for a head that stores none.
    """

    def __init__(
        self, config: dict[str, Any], tensors: dict[str, Tensor], embedding: Tensor | None = None
    ) -> None:
        self.config = config
        self.w = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        if embedding is not None:
            self.w["embed_tokens.weight"] = embedding.double()

    def __call__(self, ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Row i: the embedding of ids[i] beside hidden[i], at position i.

        Shapes:
            hidden: (T, D); returns (T, V) logits and (T, D) states before the last norm.
        """
        w, config = self.w, self.config
        embedded = w["embed_tokens.weight"][ids]
        both = torch.cat(
            [
                self._norm(embedded, "midlayer.input_layernorm"),
                self._norm(hidden, "midlayer.hidden_norm"),
            ],
            -1,
        )
        states = hidden + self._attention(both)
        normed = self._norm(states, "midlayer.post_attention_layernorm")
        gate, up = (normed @ w[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        states = states + (F.silu(gate) * up) @ w["midlayer.mlp.down_proj.weight"].T
        known = self._norm(states, "norm") @ w["lm_head.weight"].T
        logits = torch.full((len(ids), config["vocab_size"]), -torch.inf, dtype=torch.float64)
        for draft_id, offset in enumerate(w["d2t"].tolist()):
            logits[:, draft_id + offset] = known[:, draft_id]
        return logits, states

    def fuse(self, states: list[Tensor]) -> Tensor:
        return torch.cat([state.double() for state in states], -1) @ self.w["fc.weight"].T

    def chain(self, tokens: list[int], states: list[Tensor], count: int) -> list[int]:
        """The likeliest tokens to follow, each after those before it.

        Args:
            tokens: that stand, the last one not yet seen by the target.
            states: of the target, of all tokens but the last.
            count: how many.
        """
        hidden, ids = self.fuse(states), tokens[1:]
        found: list[int] = []
        for _ in range(count):
            logits, own = self(ids, hidden)
            found.append(int(logits[-1].argmax()))
            state = self._norm(own[-1:], "norm") if self.config.get("norm_output") else own[-1:]
            ids, hidden = [*ids, found[-1]], torch.cat([hidden, state])
        return found

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        eps = self.config["rms_norm_eps"]
        return (
            rows
            * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
            * self.w[f"{name}.weight"]
        )

    def _attention(self, rows: Tensor) -> Tensor:
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (
            (rows @ self.w[f"midlayer.self_attn.{name}_proj.weight"].T).unflatten(-1, (count, -1))
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        q, k = self._rotate(q), self._rotate(k)
        k, v = (each.repeat_interleave(heads // kv_heads, 1) for each in (k, v))
        out = F.scaled_dot_product_attention(
            *(each.transpose(0, 1) for each in (q, k, v)), is_causal=True
        )
        return out.transpose(0, 1).flatten(1) @ self.w["midlayer.self_attn.o_proj.weight"].T

    def _rotate(self, rows: Tensor) -> Tensor:
        half = rows.shape[-1] // 2
        steps = torch.arange(half, dtype=torch.float64)
        speed = self.config["rope_theta"] ** (-steps / half)
        angle = (torch.arange(rows.shape[0], dtype=torch.float64)[:, None] * speed)[:, None]
        first, second = rows[..., :half], rows[..., half:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
