from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.config import former
from trailnotes.config.former import HINTS, REMOVED_KEYS, RENAMED_KEYS
from trailnotes.config.schema import Config, full_config_type
from trailnotes.config.toml import (
    collect_fields,
    diff_configs,
    flatten_config,
    format_toml_value,
    load_config,
    render_config,
    resolve_config,
    to_toml,
)
from trailnotes.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_precedence_default_preset_file_command_line(tmp_path: Path) -> None:
    assert load_config() == Config()
    path = write(tmp_path, 'preset = "paper-webshop"\n[loss]\nkl = 0.5\n[rollout]\nmax_steps = 7\n')
    resolved = resolve_config(path, ["--rollout.max_steps", "9"])
    config = resolved.config
    assert (config.rollout.max_steps, config.loss.kl, config.optim.minibatch) == (9, 0.5, 64)
    assert config.train.iterations == Config().train.iterations
    names = ("rollout.max_steps", "loss.kl", "optim.minibatch", "train.iterations")
    assert [resolved.origins.get(name) for name in names] == ["command line", str(path), "preset", None]
    config = load_config(write(tmp_path, "optim.minibatch = 3\n"), ["--preset", "paper-webshop"])
    assert (config.optim.minibatch, config.rollout.max_steps) == (3, 15)


@pytest.mark.parametrize(
    ("preset", "turns", "minibatch", "kl"),
    [("paper-scienceworld", (30, 32, 4500), 16, 0.0), ("paper-webshop", (15, 512, 16384), 64, 0.01)],
)
def test_presets_hold_the_published_settings(preset: str, turns: tuple[int, ...], minibatch: int, kl: float) -> None:
    config = load_config(None, ["--preset", preset])
    rollout = config.rollout
    assert (rollout.max_steps, rollout.max_action_tokens, rollout.max_context_tokens) == turns
    assert (config.optim.minibatch, config.loss.kl, config.optim.lr) == (minibatch, kl, 1e-6)
    assert rollout.group_size == 8
    assert (config.empo2.mode_unit, config.empo2.p_memory) == ("iteration", 0.25)
    assert config.empo2.q_off_policy == pytest.approx(0.6667, abs=1e-4)
    memory = config.memory
    assert (memory.duplicates, memory.order, memory.top_k, memory.threshold) == ("reject", ("score",), 10, 0.5)
    assert (memory.query, memory.capacity) == ("conversation", 1000)
    assert (memory.repeat_shown, memory.leave_room) == (False, True), "30 turns do not fit with the paper's repetitions"
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.dual_clip) == (0.2, 0.3, 10.0)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--optim.lr", "1e-5"], "optim.lr", 1e-5),
        (["--optim.lr", "1"], "optim.lr", 1.0),
        (["--memory.threshold", "-1"], "memory.threshold", -1.0),
        (["--run.name", "7"], "run.name", "7"),
        (["--run.name", '"7"'], "run.name", "7"),
        (["--run.name=--odd"], "run.name", "--odd"),
        (["--run.name", "a\nb = 3"], "run.name", "a\nb = 3"),
        (["--run.deterministic", "false"], "run.deterministic", False),
        (["--memory.order", '["score", "recency"]'], "memory.order", ("score", "recency")),
        (["--loss.mask_logprob", "none"], "loss.mask_logprob", None),
        (["--rollout.system_prompt", ""], "rollout.system_prompt", ""),
        (["--rollout.system_prompt", '{"role": "a"}'], "rollout.system_prompt", '{"role": "a"}'),
        (["--run.seed", "1", "--run.seed", "2"], "run.seed", 2),
        (["--env.options.depth.of", "3", "--env.options.name=x"], "env.options", {"depth": {"of": 3}, "name": "x"}),
        (["--env.options.a", "1", "--env.options", "{ b = 2 }"], "env.options", {"a": 1, "b": 2}),
        (["--env.options", "{ b = 2 }", "--env.options.a", "1"], "env.options", {"a": 1, "b": 2}),
        (["--env.options", '{"path": "games", "deep": {"on": true}}'], "env.options",
         {"path": "games", "deep": {"on": True}}),
        (["--endpoint.base_url", "https://host/@me/v1?a=1"], "endpoint.base_url", "https://host/@me/v1?a=1"),
        (["--memory.embedder", "openai:@cf/bge@https://host:1/v1"], "memory.embedder",
         "openai:@cf/bge@https://host:1/v1"),
        (["--rollout.group_size", "2", "--algorithm.name", "grpo"], "rollout.group_size", 2),
    ],
)  # fmt: skip
def test_overrides(words: list[str], key: str, value: object) -> None:
    assert flatten_config(load_config(None, words))[key] == value


def test_environment_options_of_file_and_command_line_are_merged(tmp_path: Path) -> None:
    path = write(tmp_path, "[env.options]\nsize = 3\ndeep = {a = 1, b = 2}\n")
    config = load_config(path, ["--env.options.deep.b", "5"])
    assert config.env.options == {"size": 3, "deep": {"a": 1, "b": 5}}


@pytest.mark.parametrize("text", ["[env.options]\nx = " + "[" * 3000, f"[env.options]\nx{'.x' * 3000} = 1"])
def test_deep_nesting_is_refused(tmp_path: Path, text: str) -> None:
    key, _, value = text.removeprefix("[env.options]\n").partition(" = ")
    with pytest.raises(ConfigError, match="nests too deeply"):
        load_config(write(tmp_path, text))
    with pytest.raises(ConfigError, match="nests too deeply"):
        load_config(None, [f"--env.options.{key}", value])


REFUSED = {  # words of a command line -> what the line names: the key, and what to use instead
    "--rolout.group_size 3": ["command line", "'rolout'", "rollout?"],
    "--rollout.group_sise 3": ["[rollout]", "rollout.group_size?"],
    "--optim.temprature 3": ["[optim]", "temperature?"],
    "--train.lr 3": ["[train]", "did you mean optim.lr or warmstart.lr?"],
    "--zzz 3": ["preset, run, model"],
    "--own.hard 3": ["no section 'own'", 'algorithm.name = "module:NAME"'],
    "--model.lora.rnak 3": ["[model.lora]", "model.lora.rank"],
    "--rollout.group_size 0": ["command line: rollout.group_size = 0", "1"],
    "--rollout.group_size 1": ["rollout.group_size >= 2"],
    "--rollout.group_size 2": ["empo2.p_memory", "rollout.group_size = 2"],
    "--run.seed true": ["run.seed = true"],
    "--algorithm.name ppo": ["algorithm.name", "rloo", "module:NAME"],
    "--preset paper": ["preset", "'paper-webshop'"],
    "--rollout 3": ["rollout.KEY"],
    "--run.seed.x 3": ["run.seed"],
    "--run.seed": ["--run.seed VALUE"],
    "run.seed 3": ["'run.seed'", "--section.key value"],
    "--run.seed 1 --run.seed.x 3": ["run.seed.x"],
    "--env.options {a:1}": ["--env.options.KEY VALUE"],
    '--env.options {"x":[null]}': ["env.options", "x is NoneType", "leave it out"],
    "--rehearsal.options.deep.x nan": ["rehearsal.options", "x is float", "finite"],
    "--optim.lr inf": ["optim.lr = inf"],
    "--rollout.max_action_tokens 5000": ["rollout.max_context_tokens"],
    "--algorithm.intrinsic tips": ["algorithm.intrinsic", '"states"'],
    "--rehearsal.path a.jsonl --rehearsal.split spare": ["rehearsal.path"],
    "--warmstart.advice 0.6 --warmstart.write 0.6": ["warmstart.advice", "warmstart.write"],
    "--rehearsal.split spare --rehearsal.hold 0": ["rehearsal.imitate"],
    "--algorithm.name opsd --algorithm.dynamic_sampling 2": ["teach opsd", "algorithm.dynamic_sampling = 0"],
    "--algorithm.name ucob --empo2.mode_unit iteration": ['empo2.mode_unit = "trajectory"'],
    "--empo2.author_credit 1 --empo2.p_memory 1": ["empo2.p_memory"],
    "--empo2.author_credit 1 --empo2.p_memory 0.95": ["rounds to no member without tips", "rollout.group_size"],
    "--empo2.author_credit 1 --algorithm.show_tips other": ['algorithm.show_tips = "own"'],
    "--rollout.example_turns [['a','b']] --rehearsal.split spare": ["rollout.example_turns"],
    "--rollout.stop ['x','']": ["rollout.stop", "at least 1 character"],
    "--memory.embedder ''": ["memory.embedder", "at least 1 character"],
    "--endpoint.extra.stop x": ["endpoint.extra.stop"],
    "--run.seed -1 --optim.lr 0": ["(and 1 more)"],
    "--endpoint.base_url https://me:hush@host/v1": ["endpoint.base_url", "OPENAI_API_KEY"],
    "--endpoint.base_url me:hush@host/v1": ["endpoint.base_url"],
    "--memory.embedder openai:@me/small@http://me:hush@host/v1": ["TRAILNOTES_EMBEDDER_KEY"],
    "--engine.urls ['me:hush@host:7465']": ["engine.urls", "VLLM_API_KEY"],
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_settings_get_one_line_that_names_the_key_and_repeats_no_secret(words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, words.split())
    message = str(caught.value)
    assert "\n" not in message
    assert "hush" not in message
    assert [part for part in REFUSED[words] if part not in message] == []


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("--empo2.author_credit 1 --memory.scope family", 'memory.scope = "task"'),
        ("--algorithm.name opsd --memory.retire least_used", "memory.retire = least_used goes by readers"),
        ("--engine.name vllm --engine.urls ['http://host:7465'] --engine.replicas 2", "leave out engine.replicas"),
    ],
)
def test_what_only_trainings_cannot_follow_is_refused_there_alone(words: str, fix: str) -> None:
    config = load_config(None, ["--model.path", "x", *words.split()])
    with pytest.raises(ConfigError, match=fix):
        config.validate_training()


@pytest.mark.parametrize("name", REMOVED_KEYS)
def test_a_removed_key_is_dropped_at_its_former_default_and_refused_at_another(name: str, tmp_path: Path) -> None:
    assert name not in collect_fields(full_config_type())
    default = format_toml_value(REMOVED_KEYS[name])
    assert resolve_config(write(tmp_path, f"{name} = {default}\n"), [f"--{name}", default]) == resolve_config()
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, f'{name} = ["another"]\n'))
    assert str(caught.value).startswith(f"{tmp_path / 'config.toml'}: {name} is no longer a setting: ")
    assert HINTS.get(name, "it is always ") in str(caught.value)


PRESENT = {  # present names of former keys, at other values than their defaults
    "rollout.max_async_iterations": 1, "engine.max_logprob_mismatch": 0.5, "warmstart.p_follow_tip": 0.1,
    "warmstart.p_explore": 0.2, "warmstart.p_full_loss": 0.3, "warmstart.lossless_vocab": True, "empo2.p_memory": 0.5,
    "empo2.q_off_policy": 0.5, "empo2.mode_unit": "iteration", "empo2.old_logprobs": "acting",
    "empo2.author_credit": 0.5, "empo2.author_age": 2, "empo2.author_share": "equal",
    "eval.warmup_split": "train", "eval.warmup_tasks": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", RENAMED_KEYS)
def test_a_former_key_works_with_one_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(former, "_warned_keys", set())
    present = RENAMED_KEYS[name]
    section, key = name.split(".")
    text = format_toml_value(PRESENT[present])
    expected = load_config(None, [f"--{present}", text])
    assert diff_configs(Config(), expected) == [present]
    assert load_config(write(tmp_path, f"{name} = {text}\n")) == expected == load_config(None, [f"--{name}", text])
    assert Config(**{section: {key: PRESENT[present]}}) == expected
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"{name} is now {present}" in caplog.text
    with pytest.raises(ConfigError, match=f"{name} is the former name of {present}"):
        load_config(None, [f"--{name}", text, f"--{present}", text])


json_values = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e308, 1e308) | st.text() | st.just(Path("a/b")),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def is_encodable(value: object) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(
    name=st.text().filter(is_encodable),
    options=st.dictionaries(st.text(), json_values, max_size=3).filter(is_encodable),
    lr=st.floats(1e-12, 1e12),
    mask=st.none() | st.floats(-100, 0),
    stop=st.lists(st.text(min_size=1).filter(is_encodable), max_size=3),
)
def test_toml_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    name: str, options: dict[str, object], lr: float, mask: float | None, stop: list[str],
) -> None:  # fmt: skip
    sections: dict[str, dict[str, object]] = {
        "run": {"name": name}, "env": {"options": options}, "optim": {"lr": lr},
        "loss": {"mask_logprob": mask}, "rollout": {"stop": stop},
    }  # fmt: skip
    config = Config(**sections)
    path = tmp_path_factory.mktemp("toml") / "c.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert load_config(path) == config


def test_show_is_a_config_that_explains_each_key(tmp_path: Path) -> None:
    resolved = resolve_config(write(tmp_path, 'preset = "paper-webshop"\n'), ["--run.seed", "3"])
    text = render_config(resolved.config, resolved.origins)
    for written in (text, to_toml(resolved.config)):
        assert load_config(write(tmp_path, written)) == resolved.config
    assert '| one of "auto", "step" | default' in text
    assert '| any of "gain", "score", "support", "recency", "oldest", "similarity", "ucb", "worth" |' in text
    assert "# learning rate of AdamW (EMPO2, arXiv 2602.23008) | > 0 |" in text
    assert "| >= -1 and <= 1; needs memory.retrieval = dense|hybrid |" in text
    lines = {line.partition(" ")[0]: line for line in text.splitlines()}
    assert [lines[name].rpartition(" ")[2] for name in ("seed", "kl", "iterations")] == ["line", "preset", "default"]
    for name, field in collect_fields(type(resolved.config)).items():
        assert field.description
        assert field.description in lines[name.rpartition(".")[2]] or text.count(field.description) == 1
