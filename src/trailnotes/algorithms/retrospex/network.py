"""The networks of the critic: one small reader for each field of text, their states side by side, then two layers.

Source: Retrospex (arXiv 2505.11807), whose networks follow DRRN (arXiv 1511.04636): a GRU for each field over an
embedding that all fields share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from trailnotes.algorithms.retrospex.vocabulary import Vocabulary
from trailnotes.memory.retrieval import Embedder

STATE_FIELDS = 2  # task, observation
ACTION_FIELDS = 3  # task, observation, action
CACHE_SIZE = 65536  # encoded texts remembered

Column = Sequence[str]  # one field of B rows


class GruEncoder(nn.Module):
    """Reads words: an embedding for all fields, and for each field a GRU whose last state stands for the text."""

    def __init__(self, vocabulary: Vocabulary, num_fields: int, embed_size: int, hidden_size: int) -> None:
        super().__init__()
        self._encode = lru_cache(CACHE_SIZE)(vocabulary.encode)
        self.embedding = nn.Embedding(vocabulary.size, embed_size)
        self.grus = nn.ModuleList(nn.GRU(embed_size, hidden_size, batch_first=True) for _ in range(num_fields))

    def forward(self, texts: Column, field: int) -> Tensor:
        """(n, hidden_size) of n texts."""
        ids = [torch.tensor(self._encode(text)) for text in texts]
        lengths = torch.tensor([len(row) for row in ids])
        padded = self.embedding(nn.utils.rnn.pad_sequence(ids, batch_first=True))
        packed = nn.utils.rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        state: Tensor = self.grus[field](packed)[1][0]
        return state


class EmbeddingEncoder(nn.Module):
    """Reads the vectors of an embedder, which is not trained: for each field one layer on top of it."""

    def __init__(self, embedder: Embedder, num_fields: int, hidden_size: int) -> None:
        super().__init__()
        self._embedder = embedder
        self.layers = nn.ModuleList(nn.Linear(embedder.dim, hidden_size) for _ in range(num_fields))

    def forward(self, texts: Column, field: int) -> Tensor:
        """(n, hidden_size) of n texts."""
        # Vectors have length 1; a component of about 1 is what layers are initialised for.
        vectors = self._embedder.embed(texts) * np.float32(np.sqrt(self._embedder.dim))
        state: Tensor = torch.relu(self.layers[field](torch.from_numpy(vectors)))
        return state


EncoderFactory = Callable[[int], nn.Module]  # from a number of fields


class FieldNetwork(nn.Module):
    """Texts in, numbers out: a reader for each field, and `num_heads` times Linear, ReLU, Linear."""

    def __init__(self, reader: nn.Module, num_fields: int, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.reader = reader
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(num_fields * hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 1))
            for _ in range(num_heads)
        )

    def forward(self, *columns: Column) -> Tensor:
        """(B, num_heads) of B rows. A text that stands in several rows is read once."""
        states = []
        for field, column in enumerate(columns):
            place = {text: index for index, text in enumerate(dict.fromkeys(column))}
            states.append(self.reader(list(place), field)[[place[text] for text in column]])
        joined = torch.cat(states, dim=-1)
        return torch.cat([head(joined) for head in self.heads], dim=-1)


class CriticNetworks(nn.Module):
    """Twin Q(task, observation, action), V(task, observation), and the slow copy of Q that both learn from."""

    def __init__(self, make_reader: EncoderFactory, hidden_size: int) -> None:
        super().__init__()
        self.q = FieldNetwork(make_reader(ACTION_FIELDS), ACTION_FIELDS, hidden_size, num_heads=2)
        self.v = FieldNetwork(make_reader(STATE_FIELDS), STATE_FIELDS, hidden_size, num_heads=1)
        self.target = FieldNetwork(make_reader(ACTION_FIELDS), ACTION_FIELDS, hidden_size, num_heads=2)
        self.target.load_state_dict(self.q.state_dict())
        self.target.requires_grad_(requires_grad=False)

    def target_q(self, tasks: Column, observations: Column, actions: Column) -> Tensor:
        """(B,) the lesser of both heads of the target."""
        least: Tensor = self.target(tasks, observations, actions).min(dim=-1).values
        return least

    def value(self, tasks: Column, observations: Column) -> Tensor:
        """(B,) V."""
        value: Tensor = self.v(tasks, observations)[:, 0]
        return value
