from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import trailnotes
from trailnotes import commands
from trailnotes.commands import QUIET_ENV, TABLE, main
from trailnotes.commands.command import Command, Group, parse_command_line, render_cli_page
from trailnotes.config.builtin import find_config
from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.errors import ConfigError, Interrupted, RunError, format_install_command
from trailnotes.memory import open_memory
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory

ROOT = Path(__file__).parents[2]
COMMANDS = [c for entry in TABLE for c in (entry.commands if isinstance(entry, Group) else (entry,))]


def names(commands: list[Command]) -> list[str]:
    return [command.name for command in commands]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the function of a module by one that records its call."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def install(name: str, answer: Any = None) -> list[Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            calls.append((args, kwargs))
            if isinstance(answer, BaseException):
                raise answer
            return answer

        monkeypatch.setattr(f"trailnotes.{name}", record)
        return calls

    return install


# -- the table of commands


@pytest.mark.parametrize("command", COMMANDS, ids=names(COMMANDS))
def test_every_help_teaches_and_its_example_is_one_that_runs(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.name.split(), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert command.example in text
    assert all(item.help in " ".join(text.split()) for item in command.arguments)
    program, *words = shlex.split(command.example)
    assert program == "trailnotes"
    args = parse_command_line(TABLE, words)
    assert args.command is command
    load_config(None, args.settings)
    config = getattr(args, "config", None)
    if config is not None:
        assert find_config(config).is_file()


@pytest.mark.parametrize("command", COMMANDS, ids=names(COMMANDS))
def test_the_page_names_every_argument(command: Command) -> None:
    text = render_cli_page(TABLE)
    assert f"## `trailnotes {command.name}`" in text
    for item in command.arguments:
        assert f"| `{item.word}` | {item.help} |" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"trailnotes {trailnotes.__version__}\n"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "train a model in an environment"),
        (["memory"], "list tips by age"),
        (["nonsense"], "there is no command"),
        (["eval"], "MODEL_OR_RUN"),
        (["adapt", "a"], "--out"),
        (["memory", "list", "DIR", "--run.seed", "3"], "memory list takes no settings"),
        (
            ["train", "a.toml", "--run-dir", "x", "--seed", "3"],
            "unrecognized arguments: --seed 3; did you mean --run.seed?",
        ),
        (["train", "a.toml", "--run_dir", "x"], "unrecognized arguments: --run_dir x; did you mean --run-dir?"),
        (["train", "a.toml", "iterations=3"], "unrecognized arguments: iterations=3; did you mean --train.iterations?"),
        (["eval", "a", "--memry"], "unrecognized arguments: --memry; did you mean --memory?"),
        (["memory", "list", "a", "--xyzzy"], "unrecognized arguments: --xyzzy\n"),
    ],
)
def test_a_wrong_command_line_exits_with_2(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert part in capsys.readouterr().err


def test_settings_may_stand_anywhere() -> None:
    words = ["train", "--optim.lr", "-1e-4", "a.toml", "--run.name=b c", "--run-dir", "r", "--preset", "paper-webshop"]
    args = parse_command_line(TABLE, words)
    assert (args.config, args.run_dir) == (Path("a.toml"), Path("r"))
    assert args.settings == ["--optim.lr", "-1e-4", "--run.name=b c", "--preset", "paper-webshop"]


# -- what goes wrong


def test_an_error_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(tmp_path / "absent.toml"), "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"trailnotes: {tmp_path}/absent.toml: no such file, and no config of the package; ")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_debug_shows_where_it_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", str(tmp_path / "absent.toml"), "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "toml.py" in error


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (RunError("two\nlines"), 2, "trailnotes: two lines\n"),
        (KeyboardInterrupt(), 130, "trailnotes: interrupted\n"),
        (Interrupted(15), 143, "trailnotes: interrupted\n"),
        (Interrupted(1, "stopped after iteration 3"), 129, "trailnotes: stopped after iteration 3\n"),
        (
            ModuleNotFoundError("No module", name="torch.nn"),
            2,
            f"this needs the package torch: {format_install_command('train')}\n",
        ),
        (PermissionError(13, "Permission denied", "/some/file"), 2, "trailnotes: /some/file: Permission denied\n"),
    ],
)
def test_exit_codes(raised: BaseException, code: int, line: str, fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake("runs.diagnose.checks.diagnose", raised)
    assert main(["diagnose", "runs/a"]) == code
    error = capsys.readouterr().err
    assert error.endswith(line)
    assert error.count("\n") == 1


def test_other_missing_modules_and_bugs_are_not_hidden(fake: Any) -> None:
    fake("runs.diagnose.checks.diagnose", ModuleNotFoundError("No module", name="mistyped"))
    with pytest.raises(ModuleNotFoundError):
        main(["diagnose", "runs/a"])
    fake("runs.diagnose.checks.diagnose", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["diagnose", "runs/a"])


def test_libraries_say_nothing_beside_the_one_line(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, warnings\n"
        "warnings.warn('raw', FutureWarning)\n"
        "raise ValueError(os.environ['HF_HUB_DISABLE_PROGRESS_BARS'] + os.environ['TRANSFORMERS_VERBOSITY'])\n"
    )
    command = [sys.executable, "-m", "trailnotes", "envs", "check", "noisy:Env"]
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONWARNINGS", *QUIET_ENV}}
    quiet = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert quiet.stderr == "trailnotes: env.name = 'noisy:Env': importing noisy raised ValueError: 1error\n"
    env["TRANSFORMERS_VERBOSITY"] = "info"
    loud = subprocess.run([*command, "--debug"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "FutureWarning: raw" in loud.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m trailnotes config show | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_bad_settings_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[rollout]\ngroup_size = 1\n")
    run = tmp_path / "run"
    assert main(["train", str(config), "--run-dir", str(run)]) == 2
    assert "set rollout.group_size >= 2" in capsys.readouterr().err
    assert not run.exists()


def test_a_system_without_posix_locks_gets_one_line() -> None:
    without = "import runpy, sys; sys.modules['fcntl'] = None; runpy.run_module('trailnotes', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("trailnotes: Trailnotes runs on Linux; other POSIX systems may work; ")
    assert len(done.stderr.splitlines()) == 1


# -- commands that play and learn: each calls one function of the Python API


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    path = tmp_path / "config.toml"
    path.write_text("[run]\nseed = 5\n")
    return str(path)


def test_train(fake: Any, config_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    calls = fake("runs.train.train", Path("runs/a/checkpoints/step-000010/model"))
    words = ["train", config_file, "--run-dir", "runs/a", "--allow-change", "optim", "--allow-change", "run.name"]
    assert main([*words, "--optim.lr", "1e-3"]) == 0
    ((config, run_dir), options) = calls[0]
    assert (config.run.seed, config.optim.lr, run_dir) == (5, 1e-3, Path("runs/a"))
    assert options == {"allow_change": ["optim", "run.name"], "memory": None}
    assert capsys.readouterr().out == "last model: runs/a/checkpoints/step-000010/model\n"
    fake("runs.dry_run.dry_run", "about 5 minutes\n")
    assert main([*words, "--dry-run"]) == 0
    assert [len(arguments) for arguments, _ in calls] == [2, 1]  # train(config, run_dir), then dry_run(config)
    assert capsys.readouterr().out == "about 5 minutes\n"


def test_eval_takes_the_settings_of_the_run_unless_told_otherwise(
    fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("[run]\nseed = 9\n")
    calls = fake("runs.evaluate.evaluate", "row")
    monkeypatch.setattr("trailnotes.runs.panels.format_markdown_table", lambda rows: f"table of {rows}\n")
    assert main(["eval", str(run), "--eval.num_tasks", "4", "--out", str(tmp_path / "out")]) == 0
    ((config, subject), options) = calls[0]
    assert (config.run.seed, config.eval.num_tasks, subject) == (9, 4, str(run))
    assert options.pop("progress").title == "eval"
    assert options == {"memory": None, "out": tmp_path / "out"}
    assert capsys.readouterr().out == f"table of ['row']\nwritten to {tmp_path}/out\n"
    assert main(["eval", str(run), "--config", config_file, "--memory"]) == 0
    ((config, _), options) = calls[1]
    assert (config.run.seed, options["memory"], options["out"]) == (5, True, None)
    (run / "checkpoints/step-000001").mkdir(parents=True)
    assert main(["eval", str(run / "checkpoints/step-000001")]) == 0
    assert calls[2][0][0].run.seed == 9
    assert main(["eval", "a-hub/name"]) == 2
    assert "add --config CONFIG" in capsys.readouterr().err


def test_adapt(fake: Any, config_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = fake("runs.adapt.adapt", [])
    (tmp_path / "table.md").write_text("table\n")
    words = ["adapt", "model", "--config", config_file, "--out", str(tmp_path), "--trials", "3", "--method", "naive"]
    assert main(words) == 0
    options = calls[0][1]
    assert (options["method"], options["trials"], options["out"], options["allow_change"]) == ("naive", 3, tmp_path, [])
    options["progress"].update(1.0, label="trial-2")
    assert capsys.readouterr().out == f"table\nwritten to {tmp_path}\n"


def test_rollout_prints_the_episodes(fake: Any, config_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = Completion((1,), (2,), (-0.1,), "go left")
    step = Step(Observation("a hall"), (), said, (1,), "go left", 1.0)
    episode = Trajectory(Task("maze/1", "maze"), (step,), Observation("won"), "terminated", True, 1.0)
    calls = fake("runs.evaluate.rollout", [episode])
    assert main(["rollout", config_file, "--out", "e.jsonl"]) == 0
    assert calls[0][0][1] is None
    shown = capsys.readouterr().out
    assert "does: go left   [reward +1]" in shown
    assert shown.endswith("written to e.jsonl\n")


def test_a_rollout_of_no_episode_is_an_error(fake: Any, config_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    fake("runs.evaluate.evaluate_model", ([], ""))
    assert main(["rollout", config_file, "--model", "random"]) == 2
    assert "no episode could be played; see the log for the reason" in capsys.readouterr().err


def test_warmstart_shows_its_progress(fake: Any, config_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    calls = fake("warmstart.training.warmstart", Path("start"))
    assert main(["warmstart", config_file, "--out", "start"]) == 0
    assert calls[0][0][1] == Path("start")
    calls[0][1]["progress"]({"step": 1, "loss": 0.25, "lr": 1e-3})
    captured = capsys.readouterr()
    assert captured.out == "model: start\n"
    assert "loss 0.25" in captured.err


def test_diagnose(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    calls = fake("runs.diagnose.checks.diagnose", "all well")
    assert main(["diagnose", "runs/a"]) == 0
    assert calls[0][0] == (Path("runs/a"),)
    assert capsys.readouterr().out == "all well\n"


# -- settings, environments


def test_config_show_prints_a_config(config_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", config_file, "--optim.lr", "1e-3"]) == 0
    shown = tmp_path / "shown.toml"
    shown.write_text(capsys.readouterr().out)
    assert load_config(shown) == load_config(Path(config_file), ["--optim.lr", "1e-3"])


def test_envs_list_names_the_built_in_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "list"]) == 0
    assert "waymarks-simulator " in capsys.readouterr().out


def test_envs_list_marks_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envs", "list"]) == 0
    absent = capsys.readouterr().out.count("not installed: ")
    monkeypatch.setitem(sys.modules, "jericho", None)
    assert main(["envs", "list"]) == 0
    text = capsys.readouterr().out
    assert text.count("not installed: ") == absent + 2
    for name in ("textworld", "waymarks"):
        said = text.partition(f"\n{name} ")[2].partition("not installed: ")
        assert said[2].startswith(format_install_command("textworld"))
        assert "\nwaymarks-simulator" not in said[0]
    assert max(len(line) for line in text.splitlines() if "not installed" not in line) <= 100
    assert main(["envs", "check", "waymarks"]) == 2
    missing = f"trailnotes: waymarks needs the package jericho: {format_install_command('textworld')}\n"
    assert capsys.readouterr().err == missing


def test_envs_list_says_what_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trailnotes.envs.ENVS", {"broken": "no_such_module:Env"})
    assert main(["envs", "list"]) == 0
    assert "cannot be used: " in capsys.readouterr().out


def test_envs_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "check", "waymarks-simulator"]) == 0
    assert "keeps the contract" in capsys.readouterr().out
    assert main(["envs", "check", "sokoban", "--env.options.num_games", "2"]) == 0  # an option of its tasks alone
    assert main(["envs", "check", "waymarks-simulator", "--env.options.zzz", "3"]) == 2
    assert "env.options.zzz: waymarks-simulator has no such option" in capsys.readouterr().err
    assert main(["envs", "check", "waymark-simulator"]) == 2
    assert "did you mean waymarks-simulator" in capsys.readouterr().err


# -- memory


@pytest.fixture
def memory_dir(tmp_path: Path) -> str:
    memory = open_memory(tmp_path / "memory.db", MemoryConfig())
    tips = [
        Tip("maze/1", "go left twice", "a hall with two doors", 1.0),
        Tip("maze/2", "take the key", "a cellar", 0.5),
    ]
    memory.add(tips)
    memory.close()
    return str(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["memory", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_memory_list_show_search_stats(memory_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = run(capsys, "list", memory_dir)
    assert [line.split()[1:] for line in listed] == [
        ["0.5/1", "maze/2", "take", "the", "key"],
        ["1/1", "maze/1", "go", "left", "twice"],
    ]
    assert len(run(capsys, "list", memory_dir, "--limit", "1")) == 1
    (line,) = run(capsys, "list", memory_dir, "--namespace", "maze/1", "--json")
    tip = json.loads(line)
    assert (tip["text"], tip["key"]) == ("go left twice", "a hall with two doors")
    assert "text       go left twice" in run(capsys, "show", memory_dir, str(tip["id"]))
    assert "go left twice" in run(capsys, "search", memory_dir, "maze/1", "two doors")[0]
    stats = run(capsys, "stats", memory_dir)
    assert stats[0].split() == ["tips", "2"]
    assert "       1 maze/2" in stats
    assert main(["memory", "show", memory_dir, "99"]) == 2


def test_an_import_says_what_had_to_make_room_for_it(memory_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(memory_dir) / "config.toml").write_text("[memory]\ncapacity = 1\n")
    file = Path(memory_dir) / "tips.jsonl"
    records = [{"namespace": "maze/1", "text": text, "key": "a pit", "score": 0.0} for text in ("beware", "jump")]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    said = run(capsys, "import", memory_dir, str(file), "--enable")
    assert said == [
        "2 tips imported (enabled), 0 were known",
        "2 tips were retired to make room (memory.capacity = 1): `memory list --retired`",
    ]
    gone = [json.loads(line) for line in run(capsys, "list", memory_dir, "--retired", "--json")]
    assert [(tip["text"], tip["retirement"]["rule"]) for tip in gone] == [
        ("beware", "oldest"),
        ("go left twice", "oldest"),
    ]
    assert "retirement" not in json.loads(run(capsys, "list", memory_dir, "--namespace", "maze/2", "--json")[0])


def test_memory_export_import_enable_edit_delete(memory_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(memory_dir) / "tips.jsonl"
    assert run(capsys, "export", memory_dir, str(file), "--namespace", "maze/1") == [f"1 tips written to {file}"]
    record = {"namespace": "maze/3", "text": "beware", "key": "a pit", "score": 0.0}
    file.write_text(json.dumps(record) + "\n")
    assert run(capsys, "import", memory_dir, str(file))[0].startswith("1 tips imported (off until")
    (line,) = run(capsys, "list", memory_dir, "--namespace", "maze/3")
    assert "maze/3 imported off  beware" in line
    tip_id = line.split()[0]
    assert run(capsys, "enable", memory_dir, tip_id) == ["1 tips enabled"]
    assert run(capsys, "enable", memory_dir, "--all", "--off") == ["3 tips disabled"]
    assert "beware of the pit" in run(capsys, "edit", memory_dir, tip_id, "beware of the pit")[0]
    assert run(capsys, "delete", memory_dir, tip_id) == ["1 tips deleted"]
    assert len(run(capsys, "list", memory_dir)) == 2
    assert main(["memory", "enable", memory_dir]) == 2
    assert "either IDs or --all" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "memory.db"])
def test_an_import_keeps_to_the_capacity_of_the_run(
    memory_dir: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(memory_dir) / "tips.jsonl"
    (Path(memory_dir) / "config.toml").write_text("[memory]\ncapacity = 2\n")
    texts = ("one", "two", "three")
    records = [{"namespace": "maze/3", "text": text, "key": text, "score": 0.0} for text in texts]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    run(capsys, "import", str(Path(memory_dir) / name), str(file), "--enable")
    left = run(capsys, "list", memory_dir, "--namespace", "maze/3")
    assert [line.split()[-1] for line in left] == ["three", "two"]


def test_a_place_without_memory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "list", str(tmp_path)]) == 2
    assert "no memory file" in capsys.readouterr().err


# -- the Python API


def test_public_names_are_sorted_and_lead_to_the_real_things() -> None:
    assert trailnotes.__all__ == sorted(trailnotes.__all__)
    assert set(trailnotes.__all__) <= set(dir(trailnotes))
    assert trailnotes.Config is Config
    assert trailnotes.load_config is load_config
    assert trailnotes.open_memory is open_memory
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = trailnotes.nonsense
    with pytest.raises(ConfigError):
        trailnotes.make_env("nonsense")


def test_a_package_whose_command_does_not_load_costs_that_command_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = EntryPoint("broken", "no_such_package.commands:BROKEN", commands.ENTRY_POINTS)
    monkeypatch.setattr(commands, "entry_points", lambda group: [broken])
    assert commands.with_offered(commands.CORE) == commands.CORE
    assert "the command broken cannot be loaded" in capsys.readouterr().err
