from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.config.former import REMOVED_KEYS
from trailnotes.config.presets import PRESETS
from trailnotes.config.schema import Config, full_config_type
from trailnotes.config.toml import (
    collect_fields,
    diff_configs,
    flatten_config,
    format_toml_value,
    load_config,
    parse_overrides,
    render_config,
    resolve_config,
    to_toml,
)
from trailnotes.errors import ConfigError
from trailnotes.learner.samples import ANCHOR_WEIGHT


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_no_file_and_no_override_give_the_defaults() -> None:
    assert load_config() == Config()


def test_precedence_default_preset_file_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'preset = "paper-webshop"\n[loss]\nkl = 0.5\n[rollout]\nmax_steps = 7\n')
    resolved = resolve_config(path, ["--rollout.max_steps", "9"])
    config = resolved.config
    assert config.rollout.max_steps == 9
    assert config.loss.kl == 0.5
    assert config.optim.minibatch == 64
    assert config.train.iterations == Config().train.iterations
    assert resolved.origins["rollout.max_steps"] == "command line"
    assert resolved.origins["loss.kl"] == str(path)
    assert resolved.origins["optim.minibatch"] == "preset"
    assert "train.iterations" not in resolved.origins


def test_a_preset_may_be_named_on_the_command_line_and_stays_under_the_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "optim.minibatch = 3\n"), ["--preset", "paper-webshop"])
    assert (config.optim.minibatch, config.rollout.max_steps) == (3, 15)


@pytest.mark.parametrize(
    ("preset", "steps", "tokens", "minibatch", "kl"),
    [("paper-scienceworld", 30, 32, 16, 0.0), ("paper-webshop", 15, 512, 64, 0.01)],
)
def test_presets_hold_the_published_settings(preset: str, steps: int, tokens: int, minibatch: int, kl: float) -> None:
    config = load_config(None, ["--preset", preset])
    assert (config.rollout.max_steps, config.rollout.max_action_tokens) == (steps, tokens)
    assert (config.optim.minibatch, config.loss.kl, config.optim.lr) == (minibatch, kl, 1e-6)
    assert (config.rollout.group_size, config.rollout.max_context_tokens) == (8, 4500)
    assert (config.empo2.mode_unit, config.empo2.p_memory) == ("iteration", 0.25)
    assert config.empo2.q_off_policy == pytest.approx(0.6667, abs=1e-4)
    memory = config.memory
    assert (memory.duplicates, memory.order, memory.top_k, memory.threshold) == ("reject", ("score",), 10, 0.5)
    assert (memory.query, memory.capacity) == ("conversation", 1000)
    assert (memory.repeat_shown, memory.leave_room) == (False, True), "30 turns do not fit with the paper's repetitions"
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.dual_clip) == (0.2, 0.3, 10.0)


def test_presets_set_only_known_keys() -> None:
    for name in PRESETS:
        assert set(resolve_config(None, ["--preset", name]).origins) <= set(collect_fields())


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--optim.lr", "1e-5"], "optim.lr", 1e-5),
        (["--optim.lr=1e-5"], "optim.lr", 1e-5),
        (["--optim.lr", "1"], "optim.lr", 1.0),
        (["--memory.threshold", "-1"], "memory.threshold", -1.0),
        (["--run.name", "first try"], "run.name", "first try"),
        (["--run.name", "7"], "run.name", "7"),
        (["--run.name", '"7"'], "run.name", "7"),
        (["--run.name=--odd"], "run.name", "--odd"),
        (["--run.name", "a\nb = 3"], "run.name", "a\nb = 3"),
        (["--run.deterministic", "false"], "run.deterministic", False),
        (["--memory.order", '["score", "recency"]'], "memory.order", ("score", "recency")),
        (["--loss.mask_logprob", "none"], "loss.mask_logprob", None),
        (["--rollout.system_prompt", ""], "rollout.system_prompt", ""),
        (["--model.lora.target_modules", '["q_proj"]'], "model.lora.target_modules", ("q_proj",)),
        (["--run.seed", "1", "--run.seed", "2"], "run.seed", 2),
        (["--env.options.depth.of", "3", "--env.options.name=x"], "env.options", {"depth": {"of": 3}, "name": "x"}),
    ],
)
def test_overrides(words: list[str], key: str, value: object) -> None:
    assert flatten_config(load_config(None, words))[key] == value


def test_environment_options_of_file_and_command_line_are_merged(tmp_path: Path) -> None:
    path = write(tmp_path, "[env.options]\nsize = 3\ndeep = {a = 1, b = 2}\n")
    config = load_config(path, ["--env.options.deep.b", "5"])
    assert config.env.options == {"size": 3, "deep": {"a": 1, "b": 5}}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--rolout.group_size", "3"], ["command line", "'rolout'", "did you mean rollout?"]),
        (["--rollout.group_sise", "3"], ["[rollout]", "did you mean rollout.group_size?"]),
        (["--optim.temprature", "3"], ["[optim]", "did you mean", "temperature?"]),
        (["--zzz", "3"], ["it has preset, run, model"]),
        (["--model.lora.rnak", "3"], ["[model.lora]", "model.lora.rank"]),
        (["--rollout.group_size", "0"], ["command line: rollout.group_size = 0", "greater than or equal to 1"]),
        (["--rollout.group_size", "1"], ["set rollout.group_size >= 2"]),
        (["--rollout.group_size", "2.5"], ["rollout.group_size = 2.5", "valid integer"]),
        (["--rollout.group_size", "x"], ['rollout.group_size = "x"', "valid integer"]),
        (["--run.seed", "true"], ["run.seed = true", "valid integer"]),
        (["--algorithm.name", "ppo"], ["algorithm.name", "rloo, training-free-grpo, ucob, or module:NAME"]),
        (["--memory.order", '["age"]'], ['memory.order = ["age"]', "'recency'"]),
        (["--preset", "paper"], ["preset", "'paper-webshop'"]),
        (["--rollout", "3"], ["rollout is a section", "rollout.KEY"]),
        (["--run.seed.x", "3"], ["run.seed", "valid integer"]),
        (["--run.seed"], ["--run.seed VALUE"]),
        (["--run.seed", "--run.name", "x"], ["--run.seed VALUE"]),
        (["run.seed", "3"], ["'run.seed'", "--section.key value"]),
        (["--run.seed", "1", "--run.seed.x", "3"], ["run.seed.x is set inside seed"]),
        (["--optim.lr", "inf"], ["optim.lr", "not finite"]),
        (["--env.options.day", "2020-01-01"], ["env.options", "date"]),
        (["--rollout.max_action_tokens", "5000"], ["smaller than rollout.max_context_tokens"]),
        (["--algorithm.intrinsic", "tips"], ['"states"']),
        (["--rehearsal.path", "a.jsonl", "--rehearsal.split", "spare"], ["path is taken", "set one to ''"]),
        (["--warmstart.advice", "0.6", "--warmstart.write", "0.6"], ["shares of one whole", "their sum to 1 at most"]),
        (["--rehearsal.split", "spare", "--rehearsal.hold", "0"], ["neither held nor imitated", "rehearsal.imitate"]),
        (["--empo2.author_credit", "1", "--empo2.p_memory", "1"], ["members with tips and without"]),
        (["--empo2.author_credit", "1", "--algorithm.show_tips", "other"], ['set algorithm.show_tips = "own"']),
        (["--rollout.example_turns", '[["a", "b"]]', "--rehearsal.split", "spare"], ["rollout.example_turns too"]),
        (["--rollout.example_turns", '[["a"]]'], ["rollout.example_turns"]),
        (["--endpoint.extra.stop", "x"], ["endpoint.extra.stop is sent", "leave it out"]),
        (["--run.seed", "-1", "--optim.lr", "0"], ["(and 1 more)"]),
    ],
)
def test_bad_settings_get_one_line_that_names_key_and_fix(words: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, words)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--endpoint.base_url", "https://me:hush-hush@host/v1"], "variable OPENAI_API_KEY"),
        (["--endpoint.base_url", "https://hush-hush@host/v1"], "endpoint.base_url must hold no name or password"),
        (["--memory.embedder", "openai:@me/small@http://me:hush-hush@host/v1"], "variable TRAILNOTES_EMBEDDER_KEY"),
        (["--engine.urls", '["me:hush-hush@host:7465"]'], "variable VLLM_API_KEY"),
        (["--endpoint.base_url", "//me:hush-hush@host/v1"], "endpoint.base_url must hold no name or password"),
        (["--endpoint.base_url", "me:hush-hush@host/v1"], "endpoint.base_url must hold no name or password"),
        (["--engine.urls", '["//me:hush-hush@host:7465"]'], "engine.urls must hold no name or password"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, words)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://host:8000/@me/v1", "https://host/@me/v1", "http://[::1]:8000/a:b@c/v1",
        "https://host/v1?api-version=1&monkey=1&max_tokens=2",
    ],
)  # fmt: skip
def test_an_address_without_a_password_is_taken(url: str) -> None:
    assert load_config(None, ["--endpoint.base_url", url]).endpoint.base_url == url


@pytest.mark.parametrize(
    "name", ["openai:nomic:latest@http://[::1]:1234/v1", "openai:@cf/baai/bge", "openai:@cf/bge@https://host:1/v1"]
)
def test_a_model_may_have_a_tag_and_an_at(name: str) -> None:
    assert load_config(None, ["--memory.embedder", name]).memory.embedder == name


def test_a_password_in_the_settings_of_an_older_run_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="must hold no name or password") as caught:
        Config.model_validate({"endpoint": {"base_url": "https://me:hush-hush@host/v1"}})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"a = ", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[rollout]\nstepz = 1", "config.toml: section [rollout]"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.toml") as caught:
        load_config(path)
    assert part in str(caught.value)


def test_missing_file_and_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "config.toml").touch()
    with pytest.raises(ConfigError, match=r"is a directory: name its .*config\.toml"):
        load_config(tmp_path)


def test_numbers_in_quotes_are_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="valid integer"):
        load_config(write(tmp_path, '[rollout]\ngroup_size = "8"\n'))


@pytest.mark.parametrize("name", REMOVED_KEYS)
def test_a_removed_key_is_dropped_at_its_former_default_and_refused_at_another(name: str, tmp_path: Path) -> None:
    assert name not in collect_fields(full_config_type())
    default, hint = REMOVED_KEYS[name]
    path = write(tmp_path, f"{name} = {format_toml_value(default)}\n")
    assert resolve_config(path, [f"--{name}", format_toml_value(default)]) == resolve_config()
    write(tmp_path, f'{name} = ["another"]\n')
    for source, origin in ((path, str(path)), (None, "command line")):
        words = [] if source else [f"--{name}", '["another"]']
        with pytest.raises(ConfigError) as caught:
            load_config(source, words)
        assert str(caught.value).startswith(f"{origin}: {name} is no longer a setting: {hint or 'it is always '}")
        assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def encodable(value: object) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(
    name=st.text().filter(encodable),
    options=st.dictionaries(st.text(), json_values, max_size=3).filter(encodable),
    lr=st.floats(1e-12, 1e12),
    mask=st.none() | st.floats(-100, 0),
    stop=st.lists(st.text().filter(encodable), max_size=3),
)
def test_toml_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    options: dict[str, object],
    lr: float,
    mask: float | None,
    stop: list[str],
) -> None:
    base = Config()
    config = base.model_copy(
        update={
            "run": base.run.model_copy(update={"name": name}),
            "env": base.env.model_copy(update={"options": options}),
            "optim": base.optim.model_copy(update={"lr": lr}),
            "loss": base.loss.model_copy(update={"mask_logprob": mask}),
            "rollout": base.rollout.model_copy(update={"stop": tuple(stop)}),
        }
    )
    path = tmp_path_factory.mktemp("toml") / "c.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert load_config(path) == config


def test_round_trip_of_a_preset_needs_no_preset(tmp_path: Path) -> None:
    config = load_config(None, ["--preset", "paper-webshop"])
    text = to_toml(config)
    assert load_config(write(tmp_path, text)) == config
    assert len(flatten_config(config)) == len(collect_fields())
    for name in collect_fields():
        section, _, last = name.rpartition(".")
        table = tomllib.loads(text)
        for part in filter(None, section.split(".")):
            table = table[part]
        assert last in table


def test_show_is_a_config_that_explains_each_key(tmp_path: Path) -> None:
    resolved = resolve_config(write(tmp_path, 'preset = "paper-webshop"\n'), ["--run.seed", "3"])
    text = render_config(resolved.config, resolved.origins)
    assert '| one of "auto", "step" | default' in text
    assert '| any of "score", "support", "recency", "similarity", "ucb", "worth" |' in text
    assert "# learning rate of AdamW (EMPO2, arXiv 2602.23008) | > 0 |" in text
    assert "| >= -1 and <= 1 |" in text
    assert '| one of "ace", ' in text
    assert load_config(write(tmp_path, text)) == resolved.config
    lines = {line.partition(" ")[0]: line for line in text.splitlines()}
    assert lines["seed"].endswith("| command line")
    assert lines["kl"].endswith("| preset")
    assert lines["iterations"].endswith("| default")
    assert "(EMPO2, arXiv 2602.23008)" in lines["p_memory"]
    for name, field in collect_fields().items():
        assert field.description
        assert field.description in lines[name.rpartition(".")[2]] or text.count(field.description) == 1


def test_diff_names_the_changed_keys() -> None:
    changed = load_config(None, ["--run.seed", "3", "--model.lora.rank", "4", "--env.options.a", "1"])
    assert diff_configs(Config(), changed) == ["run.seed", "model.lora.rank", "env.options"]
    assert diff_configs(changed, changed) == []


def test_parse_overrides_does_not_check_names() -> None:
    assert parse_overrides(["--any.thing", "[1]", "--x=y"]) == {"any": {"thing": [1]}, "x": "y"}


def test_containers_on_the_command_line_are_toml() -> None:
    config = load_config(None, ["--env.options", '{ path = "games", level = 3 }', "--rollout.stop", '["a", "b"]'])
    assert config.env.options == {"path": "games", "level": 3}
    assert config.rollout.stop == ("a", "b")


def test_a_share_of_members_that_rounds_to_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="rounds to no member"):
        load_config(None, ["--rollout.group_size", "2"])
    assert load_config(None, ["--rollout.group_size", "2", "--algorithm.name", "grpo"]).rollout.group_size == 2


def test_what_is_held_has_one_weight_by_default_whoever_holds_it() -> None:
    assert Config().rehearsal.hold == ANCHOR_WEIGHT
