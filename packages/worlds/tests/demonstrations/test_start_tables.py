"""What an initial model can do in each world, as `examples/` tabulates it, for agents whose figures are known.

Each agent does what the tip with the full score tells, else it dances: it scores by the right tip alone, and its own
tips lead nowhere.
"""

from __future__ import annotations

import asyncio
import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from shop_tips import parse_tip_actions

from trailnotes.config.toml import load_config
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.types import Message
from trailnotes_worlds.demonstrations.coin import TAKE, parse_room
from trailnotes_worlds.demonstrations.webshop_buyers import extract_purchase_path, format_terse_tip

EXAMPLES = Path(__file__).parents[4] / "examples"
WIDE = ["--rollout.max_context_tokens", "50000", "--rollout.max_observation_tokens", "9000"]
LONG = ["--memory.max_tip_tokens", "900", "--memory.max_write_tokens", "900", "--rollout.max_action_tokens", "90"]
TERSE_TIP = re.compile(r'^- " (.*) " (\d) / (\d)$', re.MULTILINE)


def load_example(name: str, config: str, *settings: str) -> tuple[dict[str, Any], Any]:
    return runpy.run_path(str(EXAMPLES / name)), load_config(config, [*WIDE, *LONG, *settings])


def fill_column(example: dict[str, Any], evaluation: Any) -> dict[str, str]:
    return dict(zip(example["LABELS"], asyncio.run(evaluation.compute_column()), strict=True))


def find_right_tip(messages: Sequence[Message]) -> str:
    tips = TERSE_TIP.findall(messages[0].content)
    return next((text for text, score, most in tips if score == most), "")


def search_coin(messages: Sequence[Message]) -> str:
    if messages[-1].content.endswith("note ?"):
        return "no coin in kitchen"
    tip, (room, _) = find_right_tip(messages), parse_room(messages[-1].content)
    way = dict(re.findall(r"([a-z ]+?) (north|south|east|west) , ", tip))
    if tip.endswith(f"coin in {room}"):
        return TAKE
    return f"move {way[room]}" if room in way else "dance"


def shop(messages: Sequence[Message]) -> str:
    done = [message.content for message in messages if message.role == "assistant"]
    if messages[-1].content.endswith("note ?"):
        return format_terse_tip(extract_purchase_path([action for action in done if action != "dance"]), ())
    path = parse_tip_actions(find_right_tip(messages))
    return path[len(done)] if len(done) < len(path) else "dance"


@pytest.mark.long
def test_coin() -> None:
    pytest.importorskip("textworld_express", reason="needs the extra textworld-express")
    example, config = load_example("coin_start.py", "textworld-express/small")
    evaluation = example["CoinEvaluation"](ScriptedPolicy(search_coin), config, 8)
    column = fill_column(example, evaluation)
    assert int(column.pop("houses")) == len(evaluation.solved) > 5
    assert list(column.values()) == ["0.00", "0.00", "1.00", "1.00", "1.00", "0.00", "-", "1.00", "0.00"]


def test_webshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))
    example, config = load_example("start_table.py", "webshop/small", "--rollout.max_steps", "8")
    evaluation = example["SolvedTasksEvaluation"](ScriptedPolicy(shop), config, 8)
    column = fill_column(example, evaluation)
    assert int(column.pop("tasks")) == len(evaluation.solved) > 4
    assert list(column.values())[:3] == ["0.00", "0.00, 0.00", "1.00, 1.00"]
    assert list(column.values())[3:] == ["0.88", "0.88", "0.00, 0.00"]  # one right tip leaves a detour out


def test_validation_goals_of_a_config_that_validates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))
    main = load_example("start_table.py", "webshop/small")[0]["main"]
    main.__globals__["build_model_policy"] = lambda _: ScriptedPolicy(shop)
    main("models/any", "webshop/small", "2", "--train.split", "validation", *WIDE, *LONG)
    assert "| tasks | 2 |" in capsys.readouterr().out
