"""The search engine: shared storages, kills, rejection, latency tables, plots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

optuna = pytest.importorskip("optuna", reason="needs the extra `search`")

from optuna.trial import TrialState  # noqa: E402
from search_worker import Toy  # noqa: E402

from mmvit_plugins.search.engine import (  # noqa: E402
    SearchSettings,
    best_of,
    finished,
    open_study,
    pareto_front,
    run_search,
)
from mmvit_plugins.search.latency import LatencyTable, trimmed_mean  # noqa: E402
from mmvit_plugins.search.plots import Series, plot_search  # noqa: E402
from mmvit_plugins.search.progress import SearchProgress  # noqa: E402
from mmvit_plugins.search.storage import MendingJournalBackend, free_stale_trials, open_storage, owner_mark  # noqa: E402

HERE = Path(__file__).parent


def start(folder: Path, storage: Path, worker: int, trials: int, pause: float) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "search_worker.py"), str(folder), str(storage), str(worker), str(trials)]
    return subprocess.Popen([*command, str(pause)], env=env)


def toy_settings(folder: Path, **changes: object) -> SearchSettings:
    values = dict(budget=40, trials=12, storage=str(folder / "trials.log"), population=8) | changes
    return SearchSettings(**values)


def evaluated(folder: Path) -> list[str]:
    return [line for file in sorted(folder.glob("evaluated_*.txt")) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("storage", ["trials.log", "trials.db"])
def test_two_workers_share_one_storage(tmp_path: Path, storage: str) -> None:
    """Both evaluate, nothing twice, and together they make what was asked for."""
    path = tmp_path / storage
    open_study(toy_settings(tmp_path, storage=str(path)))  # so that both find it
    workers = [start(tmp_path, path, number, 10, 0.15) for number in (0, 1)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    study = open_study(toy_settings(tmp_path, storage=str(path)))
    done = finished(study)
    owners = {trial.user_attrs["owner"] for trial in done}
    assert len(owners) == 2
    assert 10 <= len(done) <= 11, "the second worker may be in the middle of one when the first ends"
    assert len(evaluated(tmp_path)) == len({str(trial.user_attrs["candidate"]) for trial in done})


def test_kill_and_resume_loses_no_finished_trial(tmp_path: Path) -> None:
    path = tmp_path / "trials.log"
    worker = start(tmp_path, path, 0, 12, 0.2)
    deadline = time.monotonic() + 90
    while len(evaluated(tmp_path)) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    with path.open("ab") as file:  # as if it had been killed while it wrote
        file.write(b'{"op_code":6,"trial_id":')
    study = open_study(toy_settings(tmp_path))
    before = {trial.number: trial.values for trial in finished(study)}
    assert len(before) >= 3
    open_ = study.get_trials(states=(TrialState.RUNNING,))
    assert len(open_) <= 1
    study = run_search(Toy(tmp_path / "evaluated_1.txt", 0), toy_settings(tmp_path))
    after = {trial.number: trial.values for trial in finished(study)}
    assert len(after) == 12
    assert before.items() <= after.items()
    assert all("owner" in trial.user_attrs for trial in open_) or not any(trial.params for trial in open_)
    assert not [t for t in study.get_trials(states=(TrialState.RUNNING,)) if t.params]
    for stale in open_:  # its parameters were tried again; it may have been killed when it had only some of them
        again = [t.params for t in finished(study) if t.number != stale.number]
        assert any(stale.params.items() <= params.items() for params in again)
    json_lines = path.read_bytes().splitlines()
    assert all(json.loads(line) for line in json_lines)


def test_running_trials_of_living_workers_stay(tmp_path: Path) -> None:
    study = open_study(toy_settings(tmp_path))
    mine, foreign, dead = study.ask(), study.ask(), study.ask()
    mine.set_user_attr("owner", owner_mark())
    foreign.set_user_attr("owner", "another-machine:1:1")
    dead.set_user_attr("owner", owner_mark().rsplit(":", 2)[0] + ":999999999:1")
    dead.suggest_int("g0", 0, 8)
    assert [trial.number for trial in free_stale_trials(study)] == [dead.number]
    assert study.ask().params == {} and study.trials[-1].system_attrs["fixed_params"] == dead.params


def test_a_retry_that_was_killed_while_it_drew_its_parameters_keeps_all(tmp_path: Path) -> None:
    """The first had g0 and g1; its repetition was killed when it had g0 only; the next one still gets both."""
    study = open_study(toy_settings(tmp_path))
    gone = owner_mark().rsplit(":", 2)[0] + ":999999999:1"
    first = study.ask()
    first.set_user_attr("owner", gone)
    wanted = {name: first.suggest_int(name, 0, 8) for name in ("g0", "g1")}
    free_stale_trials(study)
    retry = study.ask()
    retry.set_user_attr("owner", gone)
    assert retry.suggest_int("g0", 0, 8) == wanted["g0"]
    free_stale_trials(study)
    third = study.ask()
    assert {name: third.suggest_int(name, 0, 8) for name in ("g0", "g1")} == wanted
    assert 0 <= third.suggest_int("g2", 0, 8) <= 8


def test_rejects_before_evaluation_and_meets_the_budget(tmp_path: Path) -> None:
    for sampler in ("nsga2", "random"):
        study = run_search(
            Toy(tmp_path / "evaluated.txt", 0), toy_settings(tmp_path, sampler=sampler, study=sampler, trials=20)
        )
        assert all(trial.user_attrs["cost"] <= 40 for trial in finished(study))
        pruned = study.get_trials(states=(TrialState.PRUNED,))
        assert pruned and all(trial.user_attrs["cost"] > 40 for trial in pruned)


def test_evolution_beats_random_search(tmp_path: Path) -> None:
    """The reason for the engine: on a separable score with equal numbers of evaluations."""
    scores = {}
    for sampler in ("nsga2", "random"):
        settings_ = toy_settings(tmp_path, sampler=sampler, study=sampler, trials=80)
        scores[sampler] = best_of(finished(run_search(Toy(tmp_path / "evaluated.txt", 0), settings_))).values[0]
    assert scores["nsga2"] > scores["random"]


def test_a_failing_evaluation_is_queued_again(tmp_path: Path) -> None:
    class Fails(Toy):
        def score(self, candidate: list[int]) -> float:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run_search(Fails(tmp_path / "x.txt", 0), toy_settings(tmp_path))
    study = open_study(toy_settings(tmp_path))
    failed = study.get_trials(states=(TrialState.FAIL,))
    assert len(failed) == 1
    study = run_search(Toy(tmp_path / "x.txt", 0), toy_settings(tmp_path, trials=1))
    assert finished(study)[0].params == failed[0].params


def test_an_impossible_budget_ends(tmp_path: Path) -> None:
    class Costly(Toy):
        def cost(self, candidate: list[int]) -> float:
            return 41.0

    with pytest.raises(ValueError, match="cost more than the budget of 40"):
        run_search(Costly(tmp_path / "x.txt", 0), toy_settings(tmp_path, sampler="random", max_rejections=20))


@pytest.mark.parametrize("bad", [dict(trials=0), dict(population=1), dict(sampler="hill")])
def test_settings_are_checked(tmp_path: Path, bad: dict) -> None:
    with pytest.raises(ValueError):
        toy_settings(tmp_path, **bad)


def test_storage_names(tmp_path: Path) -> None:
    assert type(open_storage(tmp_path / "a.log")).__name__ == "JournalStorage"
    assert type(open_storage(tmp_path / "a.db")).__name__ == "RDBStorage"
    assert type(open_storage("sqlite:///:memory:")).__name__ == "RDBStorage"
    with pytest.raises(ValueError, match="folder that is not there"):
        open_storage(tmp_path / "none" / "a.log")


@settings(deadline=None, max_examples=30)
@given(tail=st.binary(max_size=40).filter(lambda b: b"\n" not in b), lines=st.integers(0, 3))
def test_journal_is_mended(tmp_path_factory: pytest.TempPathFactory, tail: bytes, lines: int) -> None:
    """Whatever an interrupted write left at the end is gone after the next one; whole lines stay."""
    path = tmp_path_factory.mktemp("journal") / "j.log"
    whole = [dict(number=i) for i in range(lines)]
    path.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in whole) + tail)
    backend = MendingJournalBackend(str(path))
    backend.append_logs([dict(number=99)])
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [*whole, dict(number=99)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_pareto_front(points: list[tuple[int, int]]) -> None:
    """Exactly the points that no other beats, each once."""

    def beaten(p: tuple[int, int]) -> bool:
        return any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in points)

    assert pareto_front(points) == sorted({p for p in points if not beaten(p)})


def test_trimmed_mean() -> None:
    assert trimmed_mean([100, 1, 2, 3, 4, 5, 6, -50]) == pytest.approx(3.5)
    assert trimmed_mean([7.0]) == 7.0
    with pytest.raises(ValueError):
        trimmed_mean([])


def test_latency_table_is_exact_for_sums() -> None:
    """Linear in each gene and without interaction: no error; an interaction shows as an error."""
    values = [(0.0, 0.1, 0.2, 0.3, 0.4)] * 3
    weights = np.array([5.0, 2.0, 1.0])

    def additive(candidates: Sequence[Sequence[float]]) -> list[float]:
        return [10.0 - float(weights @ np.array(c)) for c in candidates]

    table = LatencyTable.measure(additive, values)
    probes = [[0.1, 0.3, 0.2], [0.4, 0.4, 0.4]]
    error = table.error(probes, additive(probes))
    assert error.mean == pytest.approx(0, abs=1e-12) and error.count == 2
    assert table.predict([0.0, 0.0, 0.0]) == 10.0
    slower = [2 * t for t in additive(probes)]
    assert table.error(probes, slower).largest == pytest.approx(0.5)
    assert "50.0 % on average" in str(table.error(probes, slower))


def test_progress_and_plot(tmp_path: Path) -> None:
    import io

    from rich.console import Console

    text = io.StringIO()
    chosen = toy_settings(tmp_path, trials=10)
    with SearchProgress("toy", 10, 40, Console(file=text, width=200)) as progress:
        study = run_search(Toy(tmp_path / "x.txt", 0), chosen, report=progress.update)
    assert "toy: 10/10 evaluated" in text.getvalue() and "best" in text.getvalue()
    points = [(t.values[1], t.values[0]) for t in finished(study)]
    path = plot_search(
        {"a": Series(points), "b": Series(points[:2], "marks", ["x", "y"])}, tmp_path / "p.png", "c", "s", "t", 40
    )
    assert path.read_bytes()[:4] == b"\x89PNG"
