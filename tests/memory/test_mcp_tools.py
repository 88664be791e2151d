"""What agents may do with a memory: each tool, its limits, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from trailnotes.config.schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import TipMemory, open_memory
from trailnotes.memory.exchange import enable_tips
from trailnotes.types import Tip

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")
types = pytest.importorskip("mcp_types")

from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402

from trailnotes.memory.mcp import AccessRules, Toolbox, make_server  # noqa: E402

WRITE = AccessRules(write=True)

# Control words of chat templates: ChatML, Mistral, Llama 2 to 4, DeepSeek, Gemma, GLM, Phi, Command, Granite, EXAONE.
CONTROL_WORDS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]",
    "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[IMG]", "[PREFIX]", "[SUFFIX]", "[MIDDLE]", "<s>", "</s>",
    "<<SYS>>", "<</SYS>>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|eom_id|>", "<|header_start|>",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>", "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>", "<\uff5ctool\u2581outputs\u2581begin\uff5c>", "<start_of_turn>", "<end_of_turn>",
    "<bos>", "<eos>", "[gMASK]", "<sop>", "<|user|>", "<|START_OF_TURN_TOKEN|>", "<|start_of_role|>",
    "[|assistant|]", "<think>",
]  # fmt: skip


def write_forms(word: str) -> list[str]:
    """Write a control word in eight ways that cleaning or a tokenizer may join to itself."""
    middle, wide = len(word) // 2, word.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)})
    forms = [
        word, f"go{word}left", f"{word}{word}", wide, f"{word[:middle]}\u200b{word[middle:]}",
        f"{word[:middle]}{word}{word[middle:]}", f"{word[0]}<b>{word[1:]}", f"{word[:-1]}\x00{word[-1]}",
    ]  # fmt: skip
    return [f"{number} a {form} b" for number, form in enumerate(forms)]


@pytest.fixture
def memory() -> Iterator[TipMemory]:
    with open_memory(None, MemoryConfig(threshold=-1), clock=lambda: "") as memory:
        memory.add([Tip("maze/1", f"door {n}", f"a hall with {n} doors", float(n), 5.0, model="m") for n in range(3)])
        memory.add([Tip("maze/2", "mind the well", "a yard", 1.0)])
        yield memory


def call(
    memory: TipMemory, name: str, rules: AccessRules = WRITE, client: str = "tester", **arguments: Any
) -> dict[str, Any]:
    """What a client gets that calls one tool; a refusal is raised."""

    async def ask() -> types.CallToolResult:
        info = types.Implementation(name=client, version="1")
        async with mcp.Client(make_server(Toolbox(memory, rules)), client_info=info) as session:
            return await session.call_tool(name, arguments)

    result = asyncio.run(ask())
    if result.is_error:
        raise ToolError(result.content[0].text)
    return dict(result.structured_content)


def test_tasks_are_listed_with_what_can_be_found(memory: TipMemory) -> None:
    enable_tips(memory.store, [1], enabled=False)
    both = [{"task": "maze/1", "tips": 2}, {"task": "maze/2", "tips": 1}]
    assert call(memory, "list_tasks") == {"tasks": both, "total": 2}
    assert call(memory, "list_tasks", limit=1) == {"tasks": both[:1], "total": 2}
    assert call(memory, "list_tasks", contains="/2") == {"tasks": both[1:], "total": 1}


def test_what_is_added_is_marked_and_found(memory: TipMemory) -> None:
    added = call(memory, "add_tip", task="maze/1", text='<b>Go</b> "left"\nat once', client="agent\x1b[2J\n7", score=4)
    (tip,) = memory.store.load_tips("maze/1")[-1:]
    assert (tip.text, tip.key, tip.imported, tip.enabled) == ("Go 'left' at once", "Go 'left' at once", True, True)
    assert (tip.model, tip.score, tip.max_score, tip.id) == ("mcp: agent[2J 7", 4.0, 5.0, added["id"])
    assert tip.created
    assert call(memory, "read_tip", id=tip.id)["model"] == "mcp: agent(2J 7"
    assert memory.search("maze/1", "go left", 1)[0].id == tip.id
    unnamed = call(memory, "add_tip", task="new/1", text="look up", query="a tower", client="")
    (tip,) = memory.store.load_tips("new/1")
    assert (tip.model, tip.key, tip.score, tip.id) == ("mcp: unknown", "a tower", 1.0, unnamed["id"])
    assert call(memory, "add_tip", task="maze/1", text="stand still")["score"] == 4.0, "as good as the best"


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("search_tips", {"task": "maze/9", "query": "q"}, "no tip of 'maze/9': the nearest are maze/2, maze/1"),
        ("search_tips", {"task": "maze/1", "query": "q", "limit": 0}, "limit.*greater than or equal to 1"),
        ("search_tips", {"task": "maze/1", "query": "q", "limit": 10**9}, "limit.*less than or equal to 20"),
        ("search_tips", {"task": "maze/1", "query": "q" * 40_000}, "query.*at most 32768"),
        ("search_tips", {"task": "maze/1", "query": "\ud800"}, "query.*valid string"),
        ("read_tip", {"id": 99}, "no tip 99"),
        ("read_tip", {"id": 2**63}, "id.*less than"),
        ("list_tasks", {"contains": "m" * 513}, "contains.*at most 512"),
        ("add_tip", {"task": "maze/1", "text": "la" * 1001}, "text.*at most 2000"),
        ("add_tip", {"task": "maze/1", "text": "<|im_start|>..."}, "needs a letter"),
        ("add_tip", {"task": "", "text": "up"}, "task.*at least 1"),
        ("add_tip", {"task": "new", "text": "up", "score": 1e31}, "score.*less than or equal to 10{30}"),
        ("memory_report", {"session": "one", "score": -1e308}, "score.*greater than or equal to -10{30}"),
        ("memory_report", {"session": "one", "score": 5}, "5 is above the highest, 1"),
        ("memory_report", {"session": "one", "score": "nan"}, "score.*less than or equal to 10{30}"),
        ("memory_report", {"session": "one", "score": 1, "max_score": 1e308}, "max_score.*than or equal to 10{30}"),
        ("add_tip", {"task": "[INST]", "text": "up"}, "a new task needs an id"),
    ],
)
def test_a_call_that_cannot_be_is_refused_in_words(
    memory: TipMemory, name: str, arguments: dict[str, Any], reason: str
) -> None:
    before = memory.store.sequence
    with pytest.raises(ToolError, match=f"(?s){reason}") as caught:
        call(memory, name, **arguments)
    assert len(str(caught.value)) < 600
    assert memory.store.sequence == before


def test_what_had_to_make_room_is_never_told(memory: TipMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    with memory.store.transaction():
        memory.store.retire([4], "oldest", "memory.capacity = 1")
    assert call(memory, "list_tasks")["total"] == 1
    monkeypatch.setattr(memory.store, "load_reader_stats", lambda _: {})  # of tip 1, which was just deleted
    gone: Any = ("read_tip", {"id": 1}), ("read_tip", {"id": 4}), ("search_tips", {"task": "maze/2", "query": "q"})
    for name, arguments in gone:
        with pytest.raises(ToolError, match="there is no tip"):
            call(memory, name, **arguments)
    assert call(memory, "add_tip", task="maze/2", text="mind the well", query="a yard")["id"] == 5, "the own one stays"


def test_one_task_may_be_all_there_is(memory: TipMemory) -> None:
    only = AccessRules(write=True, namespace="maze/2")
    assert call(memory, "list_tasks", only)["total"] == 1
    for name, more in (("search_tips", {"query": "q"}), ("add_tip", {"text": "up"})):
        with pytest.raises(ToolError, match="'maze/1' is not served here: the one task is 'maze/2'"):
            call(memory, name, only, task="maze/1", **more)
    other = memory.session("maze/1", "a hall").id
    with pytest.raises(ToolError, match="there is no session"):
        call(memory, "memory_report", only, session=other, score=0)
    memory.report_attempt(other, 1.0)
    with pytest.raises(ToolError, match="no tip 1"):
        call(memory, "read_tip", only, id=1)
    assert call(memory, "add_tip", only, task="maze/2", text="up")["task"] == "maze/2"


def test_a_session_is_reported_once_and_teaches_what_its_tips_are_worth(memory: TipMemory) -> None:
    readers, plain = AccessRules(write=True, plain_share=0.0), AccessRules(write=True, plain_share=1.0)
    alone = call(memory, "memory_open", plain, task="maze/1", query="a hall with 1 doors")
    assert alone["tips"] == []
    opened = call(memory, "memory_open", readers, task="maze/1", query="a hall with 1 doors", limit=1)
    (tip,) = opened["tips"]
    assert call(memory, "memory_report", readers, session=alone["session"], score=1, max_score=4)
    assert call(memory, "memory_report", readers, session=opened["session"], score=3, max_score=4)
    assert call(memory, "read_tip", id=tip["id"])["worth"] == 0.25, "(3/4 - 1/4) / (1 + 1 reader)"
    for session in (opened["session"], "unknown"):
        with pytest.raises(ToolError, match=r"waits for its report.*memory_open begins one"):
            call(memory, "memory_report", readers, session=session, score=1)


@pytest.mark.parametrize(
    ("name", "more"),
    [("add_tip", {"text": "up"}), ("memory_open", {"query": "q"}), ("search_tips", {"query": "q"}), ("list_tasks", {})],
)
def test_a_memory_that_fails_is_said_in_one_line(
    memory: TipMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    name: str, more: dict[str, str],
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> Any:
        raise MemoryStoreError("/secret/tips.db: the disk is full")

    for method in ("size", "sizes", "transaction", "begin_attempt", "get_best_score"):
        monkeypatch.setattr(memory.store, method, fail, raising=False)
    monkeypatch.setattr(memory, "session", fail)
    with pytest.raises(ToolError, match="the memory cannot be used now: try again later"):
        call(memory, name, **({"task": "maze/1"} if more else {}), **more)
    assert [record.exc_info for record in caplog.records] == [None]
    assert caplog.messages == ["/secret/tips.db: the disk is full"]


@pytest.mark.parametrize("word", CONTROL_WORDS)
def test_no_tool_hands_out_a_control_word(memory: TipMemory, word: str) -> None:
    for text in write_forms(word):
        memory.add([Tip(task, text, text, 1.0, action=text, model=text, run=text) for task in ("maze/3", text)])
    tips = memory.store.load_tips("maze/3")
    tools = Toolbox(memory, AccessRules(write=True, plain_share=0.0))
    answers = [tools.search_tips("maze/3", word, 20), tools.memory_open("maze/3", word, 20)]
    plain = unicodedata.normalize("NFKC", word)
    answers += [tools.read_tip(tip.id) for tip in tips if tip.id]
    answers += [tools.search_tips(listed["task"], word) for listed in tools.list_tasks()["tasks"]]
    with pytest.raises(ToolError, match="the nearest are") as refusal:
        tools.search_tips("0 a", word)
    task = tools.list_tasks(" a ")["tasks"][0]["task"]
    assert tools.list_tasks(task)["total"]
    somebody: Any = SimpleNamespace(session=SimpleNamespace(client_params=None))
    tools.add_tip(somebody, task, "up")
    for rules, score in ((WRITE, None), (WRITE, 9.0), (AccessRules(write=True, capacity=1), None)):
        with pytest.raises(ToolError, match=" a ") as again:
            Toolbox(memory, rules).add_tip(somebody, task, "up", score=score)
        answers.append({"refusal": str(again.value)})
    answers += [tools.list_tasks(), {"refusal": str(refusal.value), "text": memory.session("maze/3", word).text}]
    assert plain not in unicodedata.normalize("NFKC", json.dumps(answers, ensure_ascii=False))


def test_numbers_may_come_as_text_and_null_means_left_out(memory: TipMemory) -> None:
    assert len(call(memory, "search_tips", task="maze/1", query="a hall", limit="2")["tips"]) == 2
    assert call(memory, "add_tip", task="maze/1", text="go on", query=None, score="0.5")["score"] == 0.5
    opened = call(memory, "memory_open", task="maze/1", query="a hall", limit="1")
    assert call(memory, "memory_report", session=opened["session"], score="0.5", max_score="1", success=None)
