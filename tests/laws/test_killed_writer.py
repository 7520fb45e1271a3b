"""A writer that is killed at any time, again and again: what it acknowledged is there, and the next one goes on."""

import json
import os
import random
import signal
import sys
import time
import traceback
from itertools import pairwise
from pathlib import Path

import pytest
from sample_live_index import built, contents, expected, some, writer

from bidr.index.live.live_reader import LiveIndex

KILLS = 300
MOST_SECONDS = 0.5
NUMBERS = 40


def write_for_ever(index: Path, seed: int, tell: int) -> None:
    """Change the index at random; say what before each change, and after it that it was acknowledged."""
    chance = random.Random(seed)
    with writer(index, log_documents=8, segments=3) as live:
        os.write(tell, b"\n")
        while True:
            kind = chance.choices(["add", "delete", "price", "flush", "compact"], [12, 4, 4, 1, 1])[0]
            numbers, version = chance.sample(range(NUMBERS), chance.randint(1, 4)), chance.randint(0, 10**6)
            os.write(tell, json.dumps([kind, numbers, version]).encode() + b"\n")
            if kind == "add":
                live.add(*some(numbers, version))
            elif kind == "delete":
                live.delete([f"doc-{number}" for number in numbers], missing_ok=True)
            elif kind == "price":
                changes = {f"doc-{number}": {"price": version} for number in numbers}
                live.set_attributes(changes, missing_ok=True)
            else:
                getattr(live, kind)()
            os.write(tell, b"done\n")


def killed(index: Path, seed: int, after: float) -> list[str]:
    """What a writer said until it was killed."""
    told, tell = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            write_for_ever(index, seed, tell)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(tell)
    with os.fdopen(told, encoding="utf-8") as lines:
        lines.readline()  # it is at it
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
        said = lines.read().splitlines()
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it failed by itself"
    return said


def after(wanted: dict, line: str) -> dict:
    kind, numbers, version = json.loads(line)
    if kind == "add":
        return {**wanted, **expected(numbers, version)}
    if kind == "price":
        priced = {name: wanted[name] for number in numbers if (name := f"doc-{number}") in wanted}
        return {**wanted, **{name: (*old[:2], old[2] | {"price": version}, old[3]) for name, old in priced.items()}}
    gone = {f"doc-{number}" for number in numbers} if kind == "delete" else ()
    return {name: value for name, value in wanted.items() if name not in gone}


def kill_again_and_again(folder: Path, times: int) -> None:
    index, wanted, chance = built(folder / "index", 3), expected(range(3)), random.Random(0)
    acknowledged = {"add": 0, "delete": 0, "price": 0, "flush": 0, "compact": 0}
    cut_off = {**acknowledged, "nothing": 0}
    took_place = 0
    for turn in range(times):
        said = killed(index, turn, chance.uniform(0, MOST_SECONDS))
        for line, next_line in pairwise(said):
            if next_line == "done":
                wanted = after(wanted, line)
                acknowledged[json.loads(line)[0]] += 1
        last = said[-1] if said and said[-1] != "done" else None
        cut_off[json.loads(last)[0] if last else "nothing"] += 1
        found = contents(index)
        if last and found == after(wanted, last) != wanted:
            wanted = found  # it was done, and nobody was told
            took_place += 1
        assert found == wanted, turn
        if turn % 10 == 9:
            with writer(index) as live:
                live.add(*some([NUMBERS], turn))
                wanted = after(wanted, json.dumps(["add", [NUMBERS], turn]))
                assert contents(index) == wanted
            LiveIndex.open(index).verify()
    print(f"{times} kills; acknowledged {acknowledged}; cut off in {cut_off}, of which {took_place} were there")
    assert sum(cut_off.values()) - cut_off["nothing"] > times / 3
    assert sum(acknowledged.values()) > times


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_300_kills(tmp_path):
    kill_again_and_again(tmp_path, KILLS)


def test_nothing_acknowledged_is_lost_in_a_few_kills(tmp_path):
    kill_again_and_again(tmp_path, 5)
