"""A process that works on a toy search; started and killed by test_search.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from optuna.trial import Trial

from mmvit_plugins.search.engine import SearchSettings, run_search


class Toy:
    """Ten genes from 0 to 8; the cost is their sum, the score counts even ones; an evaluation leaves a line."""

    def __init__(self, log: Path, pause: float) -> None:
        self.log, self.pause = log, pause

    def suggest(self, trial: Trial) -> list[int]:
        return [trial.suggest_int(f"g{i}", 0, 8) for i in range(10)]

    def cost(self, candidate: list[int]) -> float:
        return float(sum(candidate))

    def score(self, candidate: list[int]) -> float:
        assert sum(candidate) <= 40, "rejected before it is evaluated"
        time.sleep(self.pause)
        with self.log.open("a") as file:
            file.write(f"{candidate}\n")
        return float(sum(value % 2 == 0 for value in candidate) + sum(candidate) / 100)


if __name__ == "__main__":
    folder, storage, worker, trials, pause = sys.argv[1:]
    settings = SearchSettings(budget=40, trials=int(trials), storage=storage, population=8)
    run_search(Toy(Path(folder) / f"evaluated_{worker}.txt", float(pause)), settings, int(worker))
