"""The model of the six families a kind with a vocabulary for twenty-four: same weights, rows by token, new ones drawn.

python models/waymarks-start/grow.py OLD_MODEL configs/demo-warmstart.toml NEW_MODEL
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from trailnotes.config.toml import load_config
from trailnotes.learner.learner import export_model
from trailnotes.policies.hf.policy import load_model
from trailnotes.warmstart.small_model import build_model, train_tokenizer
from trailnotes.warmstart.training import _iter_texts

OLD_NAMES = "amber birch cobalt dusk ember frost granite hazel ivory kelp linen marble"


def grow(old: str, config_path: str, new: str) -> None:
    """Write the model `new`; whatever token `old` knew keeps its row, new ones are drawn like those of family names."""
    config = load_config(Path(config_path), ["--model.path", old])
    model, known = load_model(config.model)
    tokenizer = train_tokenizer(_iter_texts(config), config.warmstart.vocab_size)
    grown = build_model(tokenizer, config.warmstart, config.rollout.max_context_tokens)
    before, rows = known.get_vocab(), model.state_dict()["model.embed_tokens.weight"]
    names = rows[[before[f"\u0120{name}"] for name in OLD_NAMES.split()]]  # a blank before a word is U+0120
    torch.manual_seed(0)
    table = names.mean(0) + names.std(0) * torch.randn(len(tokenizer), rows.shape[1])
    for token, row in tokenizer.get_vocab().items():
        if token in before:
            table[row] = rows[before[token]]
    tables = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), table)  # tied
    grown.load_state_dict(model.state_dict() | tables)
    export_model(grown, Path(new), tokenizer)


if __name__ == "__main__":
    grow(*sys.argv[1:4])
