r"""EMPO2 on two families of Waymarks, at a server of the Tinker API and here: the curves of docs/tinker.md.

    python examples/tinker_waymarks.py model runs/tinker/qwen3
    PATH=$PWD/.venv-tinker/bin:$PATH python -m tx.tinker.api --base-model runs/tinker/qwen3 --backend jax \
      --host 127.0.0.1 --port 8123 --database-url sqlite:///$PWD/runs/tinker/server.db \
      --checkpoints-base $PWD/runs/tinker/server \
      --backend-config '{"max_lora_adapters": 8, "max_lora_rank": 16, "train_micro_batch_size": 16}'
    python examples/tinker_waymarks.py train runs/tinker/qwen3 http://127.0.0.1:8123 2 3 4
    python examples/tinker_waymarks.py draw docs/results/tinker.png

The server knows Qwen3 and not the Qwen2 of the package's start model, so the first line gives a Qwen3 what it can take
over of that model's weights, and teaches it the rest by supervised fine-tuning (four minutes of one core).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import trailnotes
from trailnotes.storage.files import read_jsonl

RUNS = Path("runs/tinker")
SETTINGS = """
    --model.lora.rank 16 --optim.lr 1e-3 --optim.grad_clip 0 --train.eval_every 2 --train.max_env_steps 3000
"""  # beside the config demo-small; SkyRL clips no gradient
SHOWN = {"tinker": "at the server (SkyRL)", "torch": "here (PyTorch)"}


def make_model(path: Path) -> None:
    """Make a Qwen3 of the size of the start model, and fine-tune it on the environment's demonstrations."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from trailnotes.config.model_schema import ModelConfig
    from trailnotes.policies.hf.policy import load_model
    from trailnotes.warmstart.training import warmstart

    start, tokenizer = load_model(ModelConfig(path="builtin:waymarks-start", device="cpu"))
    shared = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
              "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "eos_token_id",
              "pad_token_id", "rope_parameters")  # fmt: skip
    settings = {name: getattr(start.config, name) for name in shared}
    head = settings["hidden_size"] // settings["num_attention_heads"]
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**settings, head_dim=head, bos_token_id=None))
    own, given = model.state_dict(), start.state_dict()
    taken = {name: given[name] for name, tensor in own.items() if name in given and given[name].shape == tensor.shape}
    norms = {
        name: torch.full_like(tensor, 3.0)
        for name, tensor in own.items()
        if name.endswith(("q_norm.weight", "k_norm.weight"))
    }
    model.load_state_dict(own | taken | norms)
    seed = path.with_name(f"{path.name}-untaught")
    model.save_pretrained(seed)
    tokenizer.save_pretrained(seed)
    warmstart(trailnotes.load_config("demo-warmstart", ["--model.path", str(seed)]), path)
    shutil.rmtree(seed)
    # skyrl-tx 0.3.0 has transformers 4, which calls these two by other names.
    config = json.loads((path / "config.json").read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    (path / "config.json").write_text(json.dumps(config, indent=1))
    words = json.loads((path / "tokenizer_config.json").read_text())
    words["additional_special_tokens"] = words.pop("extra_special_tokens")
    (path / "tokenizer_config.json").write_text(json.dumps(words, indent=1))


def train(model: str, url: str, seeds: list[str]) -> None:
    """Train each seed at the server and here."""
    for seed in seeds:
        for name, words in (("tinker", ["--learner.url", url]), ("torch", ["--model.lora.enabled", "true"])):
            own = ["--run.seed", seed, "--model.path", model, "--learner.name", name, *words]
            trailnotes.train(trailnotes.load_config("demo-small", [*SETTINGS.split(), *own]), RUNS / f"{name}-{seed}")


def draw(picture: Path) -> None:
    """Draw success without tips, of training and of validation episodes, over environment steps."""
    from trailnotes.reporting.plots import load_pyplot

    plt = load_pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained", facecolor="white")
    keys = {"rollout/success/plain": "training games", "validation/success": "validation games"}
    for axes, (key, title) in zip(panels, keys.items(), strict=True):
        for colour, (name, label) in zip(("#c2553a", "#4a6fa5"), SHOWN.items(), strict=True):
            for i, path in enumerate(sorted(RUNS.glob(f"{name}-*/metrics.jsonl"))):
                lines = list(read_jsonl(path))
                found = [(line["env_steps"], line[key]) for line in lines if key in line]
                axes.plot(*zip(*found, strict=True), color=colour, linewidth=1.6, label=None if i else label)
        axes.set(title=f"{title}, without tips", xlabel="environment steps", ylim=(-0.02, 1.04))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    panels[0].set_ylabel("success")
    panels[0].legend(frameon=False)
    figure.savefig(picture, dpi=140)


if __name__ == "__main__":
    what, first, *rest = sys.argv[1:]
    if what == "model":
        make_model(Path(first))
    elif what == "train":
        train(first, rest[0], rest[1:])
    else:
        draw(Path(first))
