"""The command line: help, exit codes, and real commands in a temporary directory."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from trailnotes import commands
from trailnotes.commands import QUIET_ENV, TABLE, main
from trailnotes.commands.command import Command, list_commands, parse_command_line
from trailnotes.config.builtin import find_config
from trailnotes.config.toml import load_config
from trailnotes.errors import Interrupted, RunError, format_install_command

COMMANDS = list_commands(TABLE)


@pytest.mark.parametrize("command", COMMANDS, ids=[command.name for command in COMMANDS])
def test_help_names_every_option_and_an_example_that_parses(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.name.split(), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert command.example in text
    assert all(item.options["help"] in " ".join(text.split()) for item in command.arguments)
    _, *words = shlex.split(command.example)
    args = parse_command_line(TABLE, words)
    assert args.command is command
    load_config(None, args.settings)
    if config := getattr(args, "config", None):
        assert find_config(config).is_file()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("", "train a model in an environment"),
        ("memory", "list tips by age"),
        ("nonsense", "there is no command"),
        ("trian", "did you mean train?"),
        ("eval", "MODEL_OR_RUN"),
        ("adapt a", "--out"),
        ("memory list DIR --run.seed 3", "memory list takes no settings"),
        ("train a.toml --seed 3", "unrecognized arguments: --seed 3; did you mean --run.seed?"),
        ("train a.toml --run_dir x", "did you mean --run-dir?"),
        ("train a.toml iterations=3", "did you mean --train.iterations?"),
        ("train --env lock:Lock", "did you mean --env.name?"),
        ("memory list a --xyzzy", "unrecognized arguments: --xyzzy\n"),
    ],
)
def test_a_wrong_command_line_exits_with_2(words: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert part in capsys.readouterr().err


# -- what goes wrong


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (RunError("two\nlines"), 2, "trailnotes: two lines\n"),
        (KeyboardInterrupt(), 130, "trailnotes: interrupted\n"),
        (Interrupted(15), 143, "trailnotes: interrupted\n"),
        (Interrupted(1, "stopped after iteration 3"), 129, "trailnotes: stopped after iteration 3\n"),
        (
            ModuleNotFoundError("No module", name="torch.nn"), 2,
            f"this needs the package torch: {format_install_command('train')}\n",
        ),
        (PermissionError(13, "Permission denied", "/some/file"), 2, "trailnotes: /some/file: Permission denied\n"),
    ],
)  # fmt: skip
def test_exit_codes(
    raised: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise raised

    failing = Command("fail", "fails", "Fail.", "trailnotes fail", fail)
    monkeypatch.setattr(commands, "TABLE", [*TABLE, failing])
    assert main(["fail"]) == code
    error = capsys.readouterr().err
    assert error.endswith(line)
    assert error.count("\n") == 1
    main(["fail", "--debug"])
    assert "Traceback" in capsys.readouterr().err
    raised = ModuleNotFoundError("No module", name="mistyped")  # a bug is not hidden
    with pytest.raises(ModuleNotFoundError):
        main(["fail"])


@pytest.mark.parametrize("words", ["train demo --run-dir r\udcff", "memory list r\udcff", "config show r\udcff"])
def test_paths_that_are_not_utf8_are_refused_in_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert r"'r\udcff' is not UTF-8" in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("train none.toml --run-dir run", "none.toml: no such file"),
        ("train own.toml --run-dir run", "rollout.group_size = 1"),
        ("train demo --run-dir run --model.path runs/nowhere/at/all", "model.path = 'runs/nowhere/at/all'"),
        ("train demo --run-dir run --model.device tpu9", "model.device = 'tpu9'"),
        ("train demo --run-dir run --env.options.familys []", "env.options.familys"),
        ("train demo --run-dir run --train.eval_every 2 --train.validation_split dev", "split = 'dev' is unknown"),
        ("train demo --optim.lr --run-dir run", "--optim.lr needs a value"),
        ("adapt random --out run --env.name waymarks-simulator --model.path x", "leave out --model.path"),
        ("adapt random --out run --env.name waymarks-simulator", "random writes nothing: --method naive"),
        ("adapt qwen/small --out run --env.name waymarks-simulator --endpoint.base_url http://127.0.0.1:9/v1",
         "did you mean openai:qwen/small"),
        ("eval random --env.name waymarks-simulator --rollout.temperature 0.5", "played by --eval.temperature"),
        ("init run.py", "trailnotes init run"),
        ("init .", "own.toml exists: name another directory"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_before_any_request_or_file(
    words: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text("[rollout]\ngroup_size = 1\n")
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("trailnotes: ")
    assert part in error
    assert len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["own.toml"]


def test_libraries_are_silent_without_debug(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, warnings\nwarnings.warn('raw', FutureWarning)\n"
        f"raise ValueError(''.join(map(os.environ.get, {list(QUIET_ENV)})))\n"
    )
    command = [sys.executable, "-m", "trailnotes", "envs", "check", "noisy:Env"]
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONWARNINGS", *QUIET_ENV}}
    quiet = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    values = "".join(QUIET_ENV.values())
    assert quiet.stderr == f"trailnotes: env.name = 'noisy:Env': importing noisy raised ValueError: {values}\n"
    loud = subprocess.run([*command, "--debug"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "FutureWarning: raw" in loud.stderr


def test_a_run_has_the_whole_name_of_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Path] = []
    monkeypatch.setattr("trailnotes.runs.train.train", lambda _, run_dir, **__: used.append(run_dir))
    assert not any(main(["train", name]) for name in ("builtin:paper/grpo-1.5b", str(find_config("paper/grpo-1.5b"))))
    assert used == [Path("runs/grpo-1.5b")] * 2


# -- settings, environments, the Python API


def test_models_prints_no_key_that_the_server_repeats(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tinker")
    answer = httpx.Response(200, json={"supported_models": [{"model_name": "org/TML-SECRET-KEY"}]})
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret-key")
    monkeypatch.setattr("tinker.ServiceClient", lambda **_: None)
    monkeypatch.setattr("httpx.get", lambda *_, **__: answer)
    assert main(["models", "--learner.url", "http://127.0.0.1:9"]) == 0
    assert capsys.readouterr().out == "org/[key]\n"


def test_envs_list_marks_what_is_not_installed_or_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jericho", None)
    assert main(["envs", "list"]) == 0
    text = capsys.readouterr().out
    for name in ("textworld", "waymarks"):
        about, _, fix = text.partition(f"\n  {name} ")[2].partition("not installed: ")
        assert fix.startswith(format_install_command("textworld"))
        assert "\n  waymarks-simulator" not in about
    assert main(["envs", "check", "waymarks"]) == 2
    assert "waymarks needs the package jericho: " in capsys.readouterr().err
    monkeypatch.setattr("trailnotes.envs.ENVS", {"broken": "no_such_module:Env"})
    assert main(["envs", "list"]) == 0
    assert "cannot be used: " in capsys.readouterr().out


def test_envs_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "check", "waymarks-simulator"]) == 0
    assert "keeps the contract" in capsys.readouterr().out
    assert main(["envs", "check", "sokoban", "--env.options.num_games", "2"]) == 0  # an option of its tasks alone
    assert main(["envs", "check", "waymarks-simulator", "--env.options.zzz", "3"]) == 2
    assert "env.options.zzz" in capsys.readouterr().err
    assert main(["envs", "check", "waymarks-simulator", "--env.name", "sokoban"]) == 2
    assert "leave out env.name" in capsys.readouterr().err
    assert main(["envs", "check", "waymark-simulator"]) == 2
    assert "waymarks-simulator" in capsys.readouterr().err
