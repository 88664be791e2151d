"""Card of an exported model: what trained it, how it did, and the settings that reproduce it.

`hf upload OWNER/NAME DIR`, of huggingface_hub, publishes a folder with its card.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from trailnotes.config.builtin import BUILTIN_PREFIX
from trailnotes.config.methods import get_label
from trailnotes.config.model_schema import LOCAL_PREFIXES
from trailnotes.config.schema import Config
from trailnotes.config.toml import RUNTIME_KEYS, diff_configs, flatten_config, format_toml_value, is_within
from trailnotes.runs.load_policy import EvaluatedModel
from trailnotes.storage.checkpoint import read_json
from trailnotes.storage.files import write_text_atomic

CARD = "README.md"
_LOCAL_KEYS = (*RUNTIME_KEYS, "run.trackers", "model.device", "model.base")  # of the author's machine


def write_model_card(folder: Path, subject: EvaluatedModel, base: str = "") -> None:
    from huggingface_hub import ModelCardData

    config, model = subject.trained, Path(subject.model)
    assert config is not None, "it tells of the run that trained the model"
    run, adapters = model.parents[2], model / "adapter_config.json"
    named = base or (str(read_json(adapters)["base_model_name_or_path"]) if adapters.is_file() else config.model.path)
    on_hub = bool(re.fullmatch(r"[\w.-]+/[\w.-]+", named)) and not named.startswith(LOCAL_PREFIXES)
    on_hub = on_hub and not Path(named).exists()
    is_builtin = config.model.path.startswith(BUILTIN_PREFIX)
    initial = config.model.path if is_builtin else named if on_hub else "PATH OF THE INITIAL MODEL"
    is_lora = (folder / "adapter_config.json").is_file()
    head = ModelCardData(
        library_name="peft" if is_lora else "transformers", pipeline_tag="text-generation",
        base_model=named if on_hub else None,
        tags=["trailnotes", "agents", config.env.name, *(["lora"] if is_lora else [])],
    )  # fmt: skip
    about, spent = read_json(run / "run.json"), subject.spent
    rows = {
        "method": f"{get_label(config.algorithm.name)} (`{config.algorithm.name}`)",
        "environment": f"`{config.env.name}`, split `{config.train.split}`",
        "initial model": f"`{initial}`",
        "trained for": f"{spent.get('iteration', 0):,} iterations, {spent.get('env_steps', 0):,} environment steps, "
        f"{spent.get('tokens_generated', 0):,} generated tokens; seed {config.run.seed}",
        "versions": ", ".join(f"{name} {version}" for name, version in about["starts"][-1]["packages"].items()),
    }
    lines = [
        "---", head.to_yaml(), "---", "", f"# {run.name}", "",
        "A language model that acts in a text environment, trained by Trailnotes.", "",
        "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), "",
        "## Success", "", *_describe_evaluations(run, model), "",
        "## Reproduce", "", "Save these settings as `config.toml`:", "",
        "```toml", *_list_settings(config, initial), "```", "", "```",
        "trailnotes train config.toml --run-dir runs/again", "trailnotes eval runs/again", "```",
    ]  # fmt: skip
    write_text_atomic(folder / CARD, "\n".join(lines) + "\n")


def _describe_evaluations(run: Path, model: Path) -> list[str]:
    """Copy the tables of this checkpoint's evaluations inside the run, each with its panel."""
    lines: list[str] = []
    for file in sorted(run.glob("*/panel.json")):
        table, panel = file.with_name("table.md"), read_json(file)
        if not table.is_file() or Path(panel["model"]).parts[-2:] != model.parts[-2:]:
            continue
        digest = hashlib.sha256(json.dumps(panel["tasks"]).encode()).hexdigest()[:16]
        games = f"{len(panel['tasks'])} tasks of `{panel['env']}`, split `{panel['split']}`"
        lines += [
            table.read_text(encoding="utf-8"),
            f"Panel: {games}, sha256 of their ids {digest}; episodes of each: {panel['num_samples']}.", "",
        ]  # fmt: skip
    return lines or ["No evaluation of this checkpoint is in its run (`trailnotes eval RUN --out RUN/eval` makes one)."]


def _list_settings(config: Config, initial: str) -> list[str]:
    """List the settings that differ from the defaults, but for those of the machine and absolute paths."""
    values = flatten_config(config) | {"model.path": initial}
    changed = [name for name in diff_configs(Config(), config) if not is_within(name, _LOCAL_KEYS)]
    lines = [f"{name} = {format_toml_value(values[name])}" for name in changed]
    return [re.sub(r'"[/~][^"]*"', '"PATH"', line) for line in lines]
