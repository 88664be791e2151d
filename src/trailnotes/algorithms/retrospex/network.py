"""The networks of the critic: one small encoder for each field of text, their states concatenated, then two layers.

Source: Retrospex (arXiv 2505.11807), whose networks follow DRRN (arXiv 1511.04636): a GRU for each field over an
embedding that all fields share. Sizes are those of its release (6d169a4). The vocabulary comes from the critic's own
data, and is saved with it as a JSON list.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

STATE_FIELDS = 2  # task, observation
ACTION_FIELDS = 3  # task, observation, action
EMBED_SIZE = 64  # width of the word embedding
HIDDEN_SIZE = 128  # width of the encoder of a field
CACHE_SIZE = 65536  # encoded texts remembered

Column = Sequence[str]  # one field of B rows


class GruEncoder(nn.Module):
    """A word embedding for all fields, and for each field a GRU whose last state represents the text."""

    def __init__(self, vocabulary: Vocabulary, num_fields: int) -> None:
        super().__init__()
        self._encode = lru_cache(CACHE_SIZE)(vocabulary.encode)
        self.embedding = nn.Embedding(vocabulary.size, EMBED_SIZE)
        self.grus = nn.ModuleList(nn.GRU(EMBED_SIZE, HIDDEN_SIZE, batch_first=True) for _ in range(num_fields))

    def forward(self, texts: Column, field: int) -> Tensor:
        """Encode n texts as (n, HIDDEN_SIZE)."""
        ids = [torch.tensor(self._encode(text)) for text in texts]
        lengths = torch.tensor([len(row) for row in ids])
        padded = self.embedding(nn.utils.rnn.pad_sequence(ids, batch_first=True))
        packed = nn.utils.rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        state: Tensor = self.grus[field](packed)[1][0]
        return state


class FieldNetwork(nn.Module):
    """A network from texts to numbers: an encoder of each field, and `num_heads` times Linear, ReLU, Linear."""

    def __init__(self, vocabulary: Vocabulary, num_fields: int, num_heads: int) -> None:
        super().__init__()
        self.reader = GruEncoder(vocabulary, num_fields)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(num_fields * HIDDEN_SIZE, HIDDEN_SIZE), nn.ReLU(), nn.Linear(HIDDEN_SIZE, 1))
            for _ in range(num_heads)
        )

    def forward(self, *columns: Column) -> Tensor:
        """Compute (B, num_heads) for B rows. A text that is in several rows is encoded once."""
        states = []
        for field, column in enumerate(columns):
            place = {text: index for index, text in enumerate(dict.fromkeys(column))}
            states.append(self.reader(list(place), field)[[place[text] for text in column]])
        joined = torch.cat(states, dim=-1)
        return torch.cat([head(joined) for head in self.heads], dim=-1)


class CriticNetworks(nn.Module):
    """Twin Q(task, observation, action), V(task, observation), and the slow copy of Q that both learn from."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.q = FieldNetwork(vocabulary, ACTION_FIELDS, num_heads=2)
        self.v = FieldNetwork(vocabulary, STATE_FIELDS, num_heads=1)
        self.target = FieldNetwork(vocabulary, ACTION_FIELDS, num_heads=2)
        self.target.load_state_dict(self.q.state_dict())
        self.target.requires_grad_(requires_grad=False)

    def target_q(self, tasks: Column, observations: Column, actions: Column) -> Tensor:
        """Compute (B,) the lesser of both heads of the target."""
        least: Tensor = self.target(tasks, observations, actions).min(dim=-1).values
        return least

    def value(self, tasks: Column, observations: Column) -> Tensor:
        """Compute (B,) the state values V."""
        value: Tensor = self.v(tasks, observations)[:, 0]
        return value


WORD = re.compile(r"\w+|[^\w\s]")
MAX_KNOWN_WORDS = 8192  # words with an id of their own; as many entries as the release's SentencePiece vocabulary
NUM_HASHED = 256  # ids that all other words share
MAX_TEXT_WORDS = 256  # of a text; what follows is not read
EMPTY_ID = 0  # of a text without words


class Vocabulary:
    """Words to ids: 0 for an empty text, then the known words, then a few that unknown words are hashed to.

    So unknown words differ from each other, and every text is readable.
    """

    def __init__(self, known: Sequence[str]) -> None:
        self.known = tuple(known)
        self._ids = {word: 1 + index for index, word in enumerate(self.known)}

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Vocabulary:
        """Make a vocabulary of the most frequent words of `texts`, ties in the order of the alphabet."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(WORD.findall(text.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[:MAX_KNOWN_WORDS])

    @property
    def size(self) -> int:
        """Return the number of ids."""
        return 1 + len(self.known) + NUM_HASHED

    def encode(self, text: str) -> list[int]:
        """Encode a text as 1 to `MAX_TEXT_WORDS` ids."""
        first = 1 + len(self.known)
        words = WORD.findall(text.lower())[:MAX_TEXT_WORDS]
        ids = [
            self._ids.get(word) or first + zlib.crc32(word.encode("utf-8", "replace")) % NUM_HASHED for word in words
        ]
        return ids or [EMPTY_ID]
