"""Low-rank adapters in peft's format: new ones, saved ones on their base, merged ones, and folded ones for acting.

They stay apart from the base wherever a model learns or is saved: what they learn at a low rate is smaller than the
last of the 8 bits of a bfloat16 weight, and most of it would be lost in the sum. `FoldedModel` adds them for acting
alone, and rounds so that the sum keeps them on average.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import find_adapter_config_file

from trailnotes.config.model_schema import LoraConfig
from trailnotes.errors import ConfigError


@contextmanager
def suppress_future_warnings() -> Iterator[None]:
    """Ignore FutureWarnings of transformers about names that peft, or our oldest version of it, still uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def load_adapter_config(path: str, is_local: bool) -> Any | None:
    """Load peft's settings of the adapters in a directory or on the hub; None where a whole model is."""
    if find_adapter_config_file(path, local_files_only=is_local) is None:
        return None
    import peft

    return peft.PeftConfig.from_pretrained(path)


def add_adapters(model: Any, config: LoraConfig, base: str) -> Any:
    """Put a peft model around a causal LM, whose adapters change nothing yet.

    `base` is its directory or hub name, which saved adapters name. Raises `ConfigError` if it has no modules to adapt.
    """
    import peft

    targets = "all-linear" if config.target_modules is None else list(config.target_modules)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=config.rank, lora_alpha=config.alpha, target_modules=targets,
    )  # fmt: skip
    try:
        with suppress_future_warnings():
            adapted = peft.get_peft_model(model, settings)
    except ValueError as error:
        raise ConfigError(f"model.lora.target_modules = {targets!r} does not fit this model: {error}") from error
    settings.base_model_name_or_path = base  # peft puts what `model` calls itself, which may be a relative path
    return _match_base_precision(adapted)


def load_adapters(model: Any, path: str, settings: Any, config: LoraConfig, base: str) -> Any:
    """Load the adapters at `path` on the base `model`, to be trained where `config`, which describes them, says so."""
    import peft

    if settings.is_prompt_learning:
        raise ConfigError(f"model.path = {path!r} holds {settings.peft_type.value}, not adapters of weights: name LoRA")
    if config.enabled:
        targets = settings.target_modules
        facts: list[tuple[str, Any, Any]] = [("rank", config.rank, getattr(settings, "r", None))]
        facts.append(("alpha", config.alpha, getattr(settings, "lora_alpha", None)))
        if config.target_modules is not None and not isinstance(targets, str):
            facts.append(("target_modules", sorted(config.target_modules), sorted(targets)))
        for name, wanted, value in facts:
            if value != wanted:
                raise ConfigError(
                    f"model.lora.{name} = {wanted!r}, but the adapters at model.path = {path!r} have {value!r}: set "
                    f"model.lora.{name} to that, or merge them first: trailnotes export {path} --merge --out DIR"
                )
        settings.lora_dropout = 0.0
    settings.base_model_name_or_path = base
    with suppress_future_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")
        return _match_base_precision(
            peft.PeftModel.from_pretrained(
                model, path, is_trainable=config.enabled, config=settings, torch_device="cpu"
            )
        )


class FoldedModel:
    """A copy of the causal LM in a peft model, for acting, with the adapters added to its weights.

    It computes two thirds of the kernels of a decoding step, or less. Weights that no adapter changes are shared; call
    `update` before acting, after `is_stale` was set. Raises `ConfigError` for adapters that cannot be added.
    """

    def __init__(self, adapted: Any) -> None:
        base, self.is_stale = adapted.get_base_model(), True
        self._layers: list[tuple[Any, Any]] = []  # adapted ones, and those of the copy
        self.model = copy.deepcopy(base, {id(shared): shared for shared in (*base.parameters(), *base.buffers())})
        for name, layer in base.named_modules():
            if not (hasattr(layer, "get_delta_weight") and hasattr(layer, "base_layer")):
                continue
            plain = self.model.get_submodule(name).base_layer
            if not plain.weight.is_floating_point() or layer.lora_variant:
                raise ConfigError("engine.fold_adapters adds LoRA to weights of 16 or 32 bits: set it to false")
            plain.weight = nn.Parameter(torch.empty_like(plain.weight), requires_grad=False)
            self.model.set_submodule(name, plain)
            self._layers.append((layer, plain))

    @torch.no_grad()
    def update(self) -> None:
        """Add the adapters as they are now, if they have changed."""
        for layer, plain in self._layers if self.is_stale else ():
            total = layer.get_base_layer().weight.float()
            for name in layer.active_adapters:
                total = total + layer.get_delta_weight(name).float()
            plain.weight.copy_(_round_spread(total) if plain.weight.dtype == torch.bfloat16 else total)
        self.is_stale = False


def _round_spread(weights: Tensor) -> Tensor:
    """Round a float32 matrix to numbers of bfloat16, up or down by thresholds that are spread evenly over it.

    Rounded to the nearest number, a change of less than half of the last bit would vanish. Here the share of weights
    that it moves is the share of a bit that it has. The thresholds are fixed (a lattice by powers of the plastic
    number), so equal weights are rounded alike.
    """
    rows, columns = (torch.arange(size, device=weights.device) for size in weights.shape)
    threshold = (rows[:, None] * 49471 + columns * 37345) & 0xFFFF
    bits = weights.view(torch.int32) + threshold.int()  # the lower half is what bfloat16 has not
    return (bits & -0x10000).view(torch.float32)


class _CastingLinear(nn.Linear):
    """Linear layer whose weights are rounded to the precision of its input at each call."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        return nn.functional.linear(input, self.weight.to(input.dtype), self.bias)


def _match_base_precision(model: Any) -> Any:
    """Let float32 adapters compute in the precision of a bfloat16 base; their weights and gradients stay.

    peft lets them compute in float32 and rounds the sum: the same is lost to rounding, and copies of activations cost
    more. It also scales and adds tensors of the output's width where ones of the rank's width, and a sum in place, do.
    """
    from peft.tuners import lora

    class AdaptedLinear(lora.Linear):  # type: ignore[misc]
        """Linear layer of a base with one adapter."""

        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if self.disable_adapters or self.merged or len(self.active_adapters) != 1 or args or kwargs:
                plain: Tensor = super().forward(x, *args, **kwargs)
                return plain
            (name,) = self.active_adapters
            low = self.lora_A[name](self.lora_dropout[name](x)) * self.scaling[name]  # (..., rank)
            added: Tensor = self.base_layer(x).add_(self.lora_B[name](low))
            return added

    kinds = (lora.Linear, getattr(lora, "Linear4bit", lora.Linear))  # peft has the second where bitsandbytes is
    for layer in model.modules():
        if not isinstance(layer, kinds):
            continue
        base = layer.get_base_layer()
        if getattr(base, "compute_dtype", base.weight.dtype) == torch.bfloat16 and not layer.lora_variant:
            layer.cast_input_dtype_enabled = False
            for adapter in (*layer.lora_A.values(), *layer.lora_B.values()):
                adapter.__class__ = _CastingLinear
            if type(layer) is lora.Linear:
                layer.__class__ = AdaptedLinear
    return model


def get_adapter_state_dict(model: Any, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Rename tensors from the peft model's parameters to the names in its files."""
    import peft

    with suppress_future_warnings():
        named: dict[str, Any] = peft.get_peft_model_state_dict(model, dict(weights), save_embedding_layers=False)
    return named


def get_trained_parameters(model: Any) -> dict[str, Any]:
    """Collect the trained parameters of a model: all, by their names, or adapters alone, by those of peft's files."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return get_adapter_state_dict(model, parameters) if hasattr(model, "peft_config") else parameters


def save_adapters(model: Any, path: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Write adapters without their base: the weights of `model`, or `state` by the names of its parameters."""
    given = {} if state is None else {"state_dict": dict(state)}
    model.save_pretrained(path, save_embedding_layers=False, **given)  # peft's "auto" asks the hub about the base
    (path / "README.md").unlink(missing_ok=True)  # a form that nobody has filled in


@torch.no_grad()
def merge_adapters(model: Any, dtype: torch.dtype = torch.float32) -> tuple[Any, float]:
    """Add the adapters of a float32 peft model to its base, which takes the place of `model`, in `dtype`.

    Returns the model, and the norm of the rounding error divided by the norm of the change, over all adapted weights.
    (A base that is no number of `dtype` loses more than that.)
    """
    base = model.get_base_model()
    layers = base.get_input_embeddings(), base.get_output_embeddings()
    embedding, head = (getattr(layer, "base_layer", layer) for layer in layers)
    if head is not None and head.weight is embedding.weight and (embedding, head) != layers:
        # Adapters change one of two that share their weights: each gets weights of its own.
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        base.config.tie_word_embeddings = base.config.get_text_config().tie_word_embeddings = False
    error = change = 0.0
    for module in model.modules():
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer"):
            for name in module.active_adapters:
                delta = module.get_delta_weight(name)
                total = module.base_layer.weight + delta
                error += float((total.to(dtype).float() - total).square().sum(dtype=torch.float64))
                change += float(delta.square().sum(dtype=torch.float64))
    return model.merge_and_unload().to(dtype), math.sqrt(error / change) if change else 0.0
