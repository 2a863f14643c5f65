"""Evolutionary search under a budget, on Optuna: many workers, resumable, costly candidates rejected unseen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import optuna
from optuna import Study
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from .storage import OWNER, free_stale_trials, open_storage, owner_mark, queue_again

__all__ = ["SAMPLERS", "Problem", "SearchSettings", "best_of", "finished", "pareto_front", "run_search"]

SAMPLERS = ("nsga2", "random")
COST = "cost"
HAS_TRIAL_CONSTRAINTS = hasattr(Trial, "set_constraint")


class Problem(Protocol):
    """What is searched. A candidate is any value that ``suggest`` makes and the other two understand."""

    def suggest(self, trial: Trial) -> Any:
        """A candidate out of the trial's ``suggest_*`` calls."""

    def cost(self, candidate: Any) -> float:
        """Its cost, cheap: known before the evaluation."""

    def score(self, candidate: Any) -> float:
        """How good it is, larger is better; the expensive part."""


@dataclass(frozen=True)
class SearchSettings:
    """How to search.

    Args:
        budget: largest legal cost.
        trials: evaluated candidates at the end, of all workers and runs together; rejected ones do not count.
        storage: see :func:`~mmvit_plugins.search.storage.open_storage`.
        study: name of the study in the storage.
        sampler: 'nsga2' (evolution) or 'random' (the baseline).
        population: size of a generation of 'nsga2'.
        mutation: probability that a gene is drawn anew.
        max_rejections: candidates in a row above the budget after which the search gives up.
        seed: of the sampler. Several workers must not draw the same: each adds its process number, unless it is None.

    Raises:
        ValueError: an illegal value.
    """

    budget: float
    trials: int
    storage: str
    study: str = "search"
    sampler: str = "nsga2"
    population: int = 20
    mutation: float | None = 0.1
    seed: int | None = 0
    max_rejections: int = 2000

    def __post_init__(self) -> None:
        if self.trials < 1 or self.population < 2:
            raise ValueError(f"wanted trials >= 1 and population >= 2, got {self.trials} and {self.population}")
        if self.sampler not in SAMPLERS:
            raise ValueError(f"the sampler is one of {', '.join(SAMPLERS)}, got {self.sampler!r}")


def _make_sampler(settings: SearchSettings, seed: int | None) -> BaseSampler:
    if settings.sampler == "random":
        return RandomSampler(seed=seed)

    def constraint(trial: FrozenTrial) -> Sequence[float]:
        return (trial.user_attrs.get(COST, float("inf")) - settings.budget,)

    # Optuna 5 takes constraints from the trials instead.
    options = {} if HAS_TRIAL_CONSTRAINTS else dict(constraints_func=constraint)
    return NSGAIISampler(population_size=settings.population, mutation_prob=settings.mutation, seed=seed, **options)


def open_study(settings: SearchSettings, worker: int = 0) -> Study:
    """The study of the settings, made or found. Maximises the score, minimises the cost.

    Args:
        settings: how to search.
        worker: number of this worker; 0 with an empty study repeats the seed's draws.
    """
    storage = open_storage(settings.storage)
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=settings.study,
            directions=["maximize", "minimize"],
            load_if_exists=True,
        )
    finally:
        optuna.logging.set_verbosity(level)
    # A resumed search must not draw once more what it drew before.
    drawn = len(study.get_trials(deepcopy=False))
    seed = None if settings.seed is None else settings.seed + 7919 * worker + drawn
    study.sampler = _make_sampler(settings, seed)
    return study


def finished(study: Study, budget: float = float("inf")) -> list[FrozenTrial]:
    """Evaluated trials whose cost is within ``budget``."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [trial for trial in trials if trial.user_attrs[COST] <= budget]


def best_of(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The one with the best score, of equal ones the cheapest."""
    return max(trials, key=lambda trial: (trial.values[0], -trial.values[1]), default=None)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (cost, score) points those that no other beats in both, by rising cost."""
    front: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def run_search(
    problem: Problem,
    settings: SearchSettings,
    worker: int = 0,
    report: Callable[[Study, FrozenTrial], None] | None = None,
) -> Study:
    """Work on a study until it has ``settings.trials`` evaluated candidates; call it in as many processes as wanted.

    A candidate above the budget is rejected before it is evaluated. One that was evaluated before is not evaluated
    again. A process may be killed at any time: finished trials stay, its open one is closed and queued again by the
    next process that starts on the same machine.

    Args:
        problem: what to search.
        settings: how.
        worker: number of this process, so that workers draw differently.
        report: called after each trial, rejected ones included.

    Raises:
        ValueError: too many rejections without an evaluation: the budget is too small.
    """
    study = open_study(settings, worker)
    free_stale_trials(study)
    mark, rejected = owner_mark(), 0
    while len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < settings.trials:
        trial = study.ask()
        trial.set_user_attr(OWNER, mark)
        try:
            evaluated = _try_candidate(study, trial, problem, settings.budget)
        except BaseException:
            # Also Ctrl-C: this trial is not done, its parameters are not lost.
            study.tell(trial, state=TrialState.FAIL)
            queue_again(study, study.get_trials(deepcopy=False)[trial.number])
            raise
        rejected = 0 if evaluated else rejected + 1
        if rejected >= settings.max_rejections:
            raise ValueError(
                f"{rejected} candidates in a row cost more than the budget of {settings.budget:g}: allow more"
            )
        if report is not None:
            report(study, study.get_trials(deepcopy=False)[trial.number])
    return study


def _try_candidate(study: Study, trial: Trial, problem: Problem, budget: float) -> bool:
    """Evaluate a candidate or reject it; True if it was evaluated."""
    candidate = problem.suggest(trial)
    cost = float(problem.cost(candidate))
    trial.set_user_attr(COST, cost)
    if HAS_TRIAL_CONSTRAINTS:
        trial.set_constraint("budget", cost - budget)
    trial.set_user_attr("candidate", candidate)
    if cost > budget:
        study.tell(trial, state=TrialState.PRUNED)
        return False
    twins = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    twin = next((other for other in twins if other.user_attrs.get("candidate") == candidate), None)
    score = float(problem.score(candidate)) if twin is None else twin.values[0]
    study.tell(trial, [score, cost])
    return True
