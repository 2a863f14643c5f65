"""A progress bar over a study that several workers fill."""

from __future__ import annotations

from types import TracebackType

from optuna import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .engine import best_of, finished

__all__ = ["SearchProgress"]


class SearchProgress:
    """Evaluated trials of all workers, rejected ones, and the best score within the budget.

    A bar on a terminal; elsewhere a line at every tenth of the way. Use it as a context and hand :meth:`update` to
    ``run_search``.

    Args:
        title: what is searched.
        trials: evaluated trials at the end.
        budget: largest legal cost.
        console: where to write.
    """

    def __init__(self, title: str, trials: int, budget: float, console: Console | None = None) -> None:
        self.title, self.trials, self.budget = title, trials, budget
        self.console = console or Console()
        self._printed = -1
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=trials, state="")

    def __enter__(self) -> SearchProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, study: Study, trial: FrozenTrial) -> None:
        """Look at the study; cheap beside an evaluation."""
        done = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
        rejected = len(study.get_trials(deepcopy=False, states=(TrialState.PRUNED,)))
        best = best_of(finished(study, self.budget))
        state = f"rejected {rejected}" + (
            "" if best is None else f", best {best.values[0]:.4g} at {best.values[1]:.4g}"
        )
        self._bar.update(self._task, completed=done, state=state)
        tenth = 10 * done // self.trials
        if not self.console.is_terminal and tenth > self._printed:
            self._printed = tenth
            self.console.print(f"{self.title}: {done}/{self.trials} evaluated, {state}", highlight=False)
