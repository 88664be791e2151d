"""A causal LM of transformers as one function: inputs to the logits at one position of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]


class Network:
    """A causal LM that gives logits at one position of each row.

    The head runs at these positions only, if that gives what the model itself gives: some models scale their logits
    after the head, and these are called as a whole.
    """

    def __init__(self, model: Any) -> None:
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.model = inner
        self.body = inner.get_decoder() if hasattr(inner, "get_decoder") else None
        self.head = inner.get_output_embeddings()
        self.split = False
        self.split = self.body not in (None, inner) and self.head is not None and self._splits()

    @property
    def device(self) -> torch.device:
        """Device of the inputs."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the activations, and of an additive mask."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @torch.inference_mode()
    def __call__(self, last: Ints, **inputs: Any) -> Tensor:
        """Logits at column `last[row]`: (B,) -> (B, V)."""
        if self.model.training:
            self.model.eval()
        rows = torch.arange(len(last), device=self.device)
        columns = torch.from_numpy(last).to(self.device)
        if not self.split:
            logits: Tensor = self.model(**inputs).logits[rows, columns]
            return logits
        assert self.body is not None
        hidden = self.body(**inputs).last_hidden_state
        picked: Tensor = self.head(hidden[:, 0] if hidden.shape[1] == 1 else hidden[rows, columns])
        return picked

    @torch.inference_mode()
    def reply_logprobs(self, prompt: Sequence[int], replies: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token of each reply to one prompt, at temperature 1, by a pass without any cache."""
        if self.model.training:
            self.model.eval()
        width, start = len(prompt) + max(map(len, replies)) - 1, len(prompt) - 1
        ids, mask = (np.zeros((len(replies), width), dtype=np.int64) for _ in range(2))
        for row, reply in enumerate(replies):
            ids[row, : start + len(reply)] = [*prompt, *reply[:-1]]
            mask[row, : start + len(reply)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask}
        given = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
        if self.split:
            assert self.body is not None
            logits = self.head(self.body(**given, use_cache=False).last_hidden_state[:, start:])
        else:
            logits = self.model(**given, use_cache=False).logits[:, start:]
        found = torch.log_softmax(logits.float(), dim=-1)
        return [found[row, torch.arange(len(reply)), torch.tensor(reply)].tolist() for row, reply in enumerate(replies)]

    def reference(self, ids: Sequence[int]) -> Tensor:
        """Logits after one sequence, by the plainest call there is: (V,)."""
        self.model.eval()
        with torch.inference_mode():
            logits: Tensor = self.model(torch.tensor([list(ids)], device=self.device), use_cache=False).logits[0, -1]
        return logits

    def probe_ids(self, num: int) -> list[int]:
        """Some token ids of the vocabulary."""
        return [(7 * index + 3) % self.model.get_input_embeddings().num_embeddings for index in range(num)]

    def _splits(self) -> bool:
        ids = self.probe_ids(5)
        self.split = True
        try:
            split = self(np.array([4]), input_ids=torch.tensor([ids], device=self.device), use_cache=False)[0]
        except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):
            return False
        return agree(split, self.reference(ids))


def agree(got: Tensor, want: Tensor) -> bool:
    """Whether two rows of logits differ by rounding only."""
    tolerance = 1e-3 if want.dtype == torch.float32 else 0.1
    got, want = got.float(), want.float()
    return bool((got - want).norm() <= tolerance * (want - want.mean()).norm())
