"""Heads that copy, for a model that begins with random weights.

To say again a name that it has never seen, a model finds where the token that it has just said stood before, and says
what came next: the work of a head that hands on the token before, and of one in a later layer that looks for it (Olsson
et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895). Training finds the two late, since neither is
of use without the other. Here they are put into the random weights, as in mimetic initialization (Trockman and Kolter
2023, arXiv 2305.09828), and trained like all others.
"""

from __future__ import annotations

from typing import Any, Final

import torch

NUM_INDUCTION_HEADS: Final = 2  # of the second layer that look for the token
EMBEDDING_STD: Final = 0.1  # standard deviation: small steps of Adam do not wipe out which token is which
MAX_SLOW_ROTATION: Final = 0.009  # radians a token: pairs of numbers that turn no faster compare what is far apart
_BIAS, _MATCH, _PREVIOUS_SCALE, _COPY_SCALE = 6.4, 2.8, 0.2, 0.8  # strengths, tried on random tokens at a width of 96


def initialize_copy_heads(model: Any) -> None:
    """Put copy heads into the first two layers of a random Qwen2, drawn from torch's generator.

    The model has two layers or more, and as many heads for keys as for queries.
    """
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    width = first.head_dim
    turns = model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, width, 2) / width)  # radians a token
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings.normal_(0, EMBEDDING_STD)
        read, place = _draw_projection(width, embeddings.shape[1]), _draw_projection(width, embeddings.shape[1])
        _initialize_previous_token_head(first, turns)
        first.v_proj.weight[:width] = read
        first.o_proj.weight[:, :width] = _PREVIOUS_SCALE * place.T
        slow = (turns <= max(MAX_SLOW_ROTATION, float(turns[-1]))).nonzero().flatten()
        for head in range(min(NUM_INDUCTION_HEADS, model.config.num_attention_heads)):
            rows = slice(head * width, (head + 1) * width)
            compared = torch.zeros(width, width)
            compared[torch.cat([slow, slow + width // 2])] = _draw_projection(2 * len(slow), width)
            second.q_proj.weight[rows] = _MATCH * compared @ read  # the token that was said
            second.k_proj.weight[rows] = _MATCH * compared @ place  # the one before each
            said = _draw_projection(width, embeddings.shape[1])
            second.v_proj.weight[rows] = said
            second.o_proj.weight[:, rows] = _COPY_SCALE * said.T


def _initialize_previous_token_head(attention: Any, turns: torch.Tensor) -> None:
    """Have the first head attend to the previous token, by biases that the rotary positions align."""
    width = attention.head_dim
    attention.q_proj.weight[:width] = attention.k_proj.weight[:width] = 0
    attention.k_proj.bias[:width] = _BIAS * torch.cat([torch.ones_like(turns), torch.zeros_like(turns)])
    attention.q_proj.bias[:width] = _BIAS * torch.cat([turns.cos(), -turns.sin()])


def _draw_projection(rows: int, columns: int) -> torch.Tensor:
    """Draw random orthonormal rows, (rows, columns)."""
    drawn: torch.Tensor = torch.nn.init.orthogonal_(torch.empty(rows, columns))
    return drawn
