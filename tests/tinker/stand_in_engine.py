"""What the stand-in computes: one tiny model, and adapters that are trained, saved, loaded and sampled."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ALPHA = 32
LAYERS = {"train_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "train_mlp": ("gate_proj", "up_proj", "down_proj")}
ADAM = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}
LOSS_INPUTS = {
    "cross_entropy": {"target_tokens", "weights"},
    "importance_sampling": {"target_tokens", "logprobs", "advantages"},
    "ppo": {"target_tokens", "logprobs", "advantages"},
}
SAMPLED = "sampled"  # the adapter of the checkpoint that was sampled last
WEIGHTS = "adapter_model.safetensors"
Body = dict[str, Any]


class RefusedError(Exception):
    """A request that cannot be done, with the status of the answer; inside a future, its failure."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass
class Trained:
    """A loaded model: its optimizer, its rows since the last step, and the checkpoint that was put in its place."""

    optimizer: torch.optim.AdamW
    rows: int = 0
    replaced_by: Path | None = None


@dataclass
class Engine:
    """One base with an adapter for each loaded model, and one for the checkpoint that is sampled."""

    model_dir: str
    skyrl: bool
    models: dict[str, Trained] = field(default_factory=dict)
    sampled: Path | None = None
    tokens: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        base = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.model_dir)
        self.max_tokens = base.config.max_position_embeddings
        self.model = PeftModel(base, self.lora({"rank": 1}), SAMPLED)

    def lora(self, wanted: Body) -> LoraConfig:
        """Translate what a client asks for; skyrl-tx trains all layers but the head, whatever it is asked."""
        flags = {} if self.skyrl else wanted
        targets = [name for flag, names in LAYERS.items() if flags.get(flag, True) for name in names]
        targets += ["lm_head"] if flags.get("train_unembed", False) else []
        name = self.model_dir
        return LoraConfig(r=wanted["rank"], lora_alpha=ALPHA, target_modules=targets, base_model_name_or_path=name)

    def parameters(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        """Return the parameters of an adapter, by their names in a PEFT directory."""
        end = f".{adapter}.weight"
        named = self.model.named_parameters()
        return {f"{name.removesuffix(end)}.weight": value for name, value in named if name.endswith(end)}

    def create(self, model_id: str, wanted: Body) -> Body:
        self.model.add_adapter(model_id, self.lora(wanted))
        seed = random.randrange(2**31) if wanted.get("seed") is None else wanted["seed"]
        generator = torch.Generator().manual_seed(seed)
        parameters = self.parameters(model_id)
        for name, value in parameters.items():
            if "lora_A" in name:
                torch.nn.init.kaiming_uniform_(value, generator=generator)  # he_uniform
        self.models[model_id] = Trained(torch.optim.AdamW(parameters.values()))
        return {"model_id": model_id, "type": "create_model"}

    def find(self, model_id: str) -> Trained:
        if model_id not in self.models:
            raise RefusedError(400, f"Model {model_id} not loaded")
        return self.models[model_id]

    def unload(self, model_id: str) -> Body:
        if self.models.pop(model_id, None):
            self.model.delete_adapter(model_id)
        return {"model_id": model_id, "type": "unload_model"}

    def run_pass(self, model_id: str, batch: Body, backward: bool) -> Body:
        """Score the rows of a batch, and add up their gradients."""
        model = self.find(model_id)
        self.model.set_adapter(model_id)
        loss, outputs, total = batch["loss_fn"], [], 0.0
        config = {} if self.skyrl else batch.get("loss_fn_config") or {}
        for datum in batch["data"]:
            ids = torch.tensor([read_tokens(datum["model_input"])])  # (1, N)
            inputs = {name: torch.tensor(value["data"]) for name, value in datum["loss_fn_inputs"].items()}
            unknown = set() if self.skyrl else inputs.keys() - LOSS_INPUTS[loss]
            if unknown:
                raise RefusedError(400, f"{loss} takes no {', '.join(sorted(unknown))}")
            weights = inputs.get("weights", torch.ones(ids.shape[1]))
            with torch.set_grad_enabled(backward):
                logprobs = self.model(input_ids=ids).logits[0].log_softmax(-1)
                logprobs = logprobs.gather(-1, inputs["target_tokens"][:, None].long())[:, 0]
                losses = torch.where(weights != 0, weights * compute_losses(loss, logprobs, inputs, config), 0.0)
                if backward:
                    (losses.sum() / (weights.sum().clamp(min=1e-9) if self.skyrl else 1)).backward()
            self.tokens["trained" if backward else "forwarded"] += ids.shape[1]
            total += losses.sum().item()
            outputs.append({"logprobs": to_tensor_data(logprobs), "elementwise_loss": to_tensor_data(losses)})
        model.rows += len(outputs) if backward else 0
        metrics = {} if self.skyrl else {"loss:sum": total}
        return {"loss_fn_output_type": "scalar", "loss_fn_outputs": outputs, "metrics": metrics}

    def step(self, model_id: str, adam: Body) -> Body:
        model, parameters, adam = self.find(model_id), self.parameters(model_id).values(), ADAM | adam
        if self.skyrl and not model.rows:
            return {"metrics": None}
        if self.skyrl:
            for parameter in parameters:
                parameter.grad = None if parameter.grad is None else parameter.grad / model.rows
        elif adam["grad_clip_norm"]:
            torch.nn.utils.clip_grad_norm_(parameters, adam["grad_clip_norm"])
        group = model.optimizer.param_groups[0]
        group |= {"lr": adam["learning_rate"], "betas": (adam["beta1"], adam["beta2"])}
        group |= {"eps": adam["eps"], "weight_decay": adam["weight_decay"]}
        model.optimizer.step()
        model.optimizer.zero_grad()
        if self.skyrl:  # its optimizers hold all adapters, and decay those without gradients
            others = [value for other in self.models.keys() - {model_id} for value in self.parameters(other).values()]
            for value in others:
                value.data *= 1 - adam["learning_rate"] * adam["weight_decay"]
        model.rows = 0
        return {"metrics": None}

    def save(self, model_id: str, path: Path) -> None:
        """Write the weights and the state of Adam, whole or not at all."""
        state = self.find(model_id).optimizer.state
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.parameters(model_id).items():
            tensors |= {name: parameter.data} | {f"{slot}/{name}": value for slot, value in state[parameter].items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def load(self, model_id: str, path: Path, with_optimizer: bool) -> Body:
        model, tensors, parameters = self.find(model_id), load_file(path), self.parameters(model_id)
        self.copy(tensors, model_id)
        model.optimizer = torch.optim.AdamW(parameters.values())
        for key, value in tensors.items() if with_optimizer or self.skyrl else ():
            slot, _, name = key.rpartition("/")
            if slot:
                model.optimizer.state[parameters[name]][slot] = value
        return {"type": "load_weights"}

    def copy(self, tensors: dict[str, torch.Tensor], adapter: str) -> None:
        for name, parameter in self.parameters(adapter).items():
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise RefusedError(400, f"the checkpoint does not fit the model at {name}")
            parameter.data.copy_(tensors[name])

    def save_adapter(self, model_id: str, path: Path) -> None:
        """Write a PEFT directory, whole or not at all; that of skyrl-tx names no target modules."""
        self.find(model_id)
        config, part = self.model.peft_config[model_id], path.with_name(f"{path.name}.part")
        part.mkdir(parents=True)
        if self.skyrl:
            config = LoraConfig(r=config.r, lora_alpha=ALPHA, base_model_name_or_path=self.model_dir)
        config.save_pretrained(part)
        save_file({name: value.data for name, value in self.parameters(model_id).items()}, part / WEIGHTS)
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
        self.sampled = None

    def activate(self, path: Path) -> None:
        """Let a checkpoint answer: skyrl-tx puts it in the place of the trained adapter, unless it did so before."""
        if self.skyrl:
            model_id = path.parts[-3]
            if (model := self.find(model_id)).replaced_by != path:
                self.copy(load_file(path / WEIGHTS), model_id)
                model.replaced_by = path
            self.model.set_adapter(model_id)
            return
        if self.sampled != path:
            self.model.delete_adapter(SAMPLED)
            self.model.add_adapter(SAMPLED, LoraConfig.from_pretrained(path))
            self.copy(load_file(path / WEIGHTS), SAMPLED)
            self.sampled = path
        self.model.set_adapter(SAMPLED)

    @torch.no_grad()
    def sample(self, path: Path | None, request: Body) -> Body:
        """Sample from a checkpoint, or from the base."""
        if path is None:
            with self.model.disable_adapter():
                return self.decode(request)
        self.activate(path)
        return self.decode(request)

    def decode(self, request: Body) -> Body:
        prompt, params = read_tokens(request["prompt"]), request["sampling_params"]
        seed = random.randrange(2**31) if params.get("seed") is None else params["seed"]
        generator, tokens, logprobs, reason = torch.Generator().manual_seed(seed), list[int](), list[float](), ""
        output = self.model(input_ids=torch.tensor([prompt]), use_cache=True)
        scored = output.logits[0, :-1].log_softmax(-1).gather(-1, torch.tensor(prompt[1:])[:, None].long())[:, 0]
        while True:
            logits = output.logits[0, -1]  # (V,)
            drawn = draw(logits, params.get("temperature", 1.0), generator)
            tokens.append(int(drawn))
            logprobs.append(float(logits.log_softmax(-1)[drawn]))
            reason = "length" if len(tokens) == params["max_tokens"] else ""
            if reason := "stop" if self.is_stopped(tokens, params.get("stop")) else reason:
                break
            output = self.model(input_ids=drawn[None, None], past_key_values=output.past_key_values, use_cache=True)
        self.tokens["prefilled"] += len(prompt)
        self.tokens["sampled"] += len(tokens)
        first = [] if self.skyrl else [None]
        prompt_logprobs = first + scored.tolist() if request.get("prompt_logprobs") else None
        sequence = {"tokens": tokens, "logprobs": logprobs, "stop_reason": reason}
        return {"sequences": [sequence], "prompt_logprobs": prompt_logprobs}

    def is_stopped(self, tokens: list[int], stop: str | list[str] | list[int] | None) -> bool:
        stops = [stop] if isinstance(stop, str) else stop or []
        text = self.tokenizer.decode(tokens) if any(isinstance(each, str) for each in stops) else ""
        return any(each in text if isinstance(each, str) else each == tokens[-1] for each in stops)


def compute_losses(name: str, logprobs: torch.Tensor, inputs: dict[str, torch.Tensor], config: Body) -> torch.Tensor:
    """Return the loss of each token (N,)."""
    if name == "cross_entropy":
        return -logprobs
    ratio = (logprobs - inputs["logprobs"]).exp()
    clipped = ratio
    if name == "ppo":
        clipped = ratio.clamp(config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2))
    return -torch.minimum(ratio * inputs["advantages"], clipped * inputs["advantages"])


def draw(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """Draw a token from logits (V,)."""
    if temperature == 0:
        return logits.argmax()
    probs, order = (logits / temperature).softmax(-1).sort(descending=True)
    return order[torch.multinomial(probs, 1, generator=generator)[0]]


def read_tokens(model_input: Body) -> list[int]:
    return [token for chunk in model_input["chunks"] for token in chunk["tokens"]]


def to_tensor_data(values: torch.Tensor) -> Body:
    return {"data": values.tolist(), "dtype": "float32", "shape": list(values.shape)}
