"""Several stages at once, each in a process of its own as soon as all it stands on is there.

Small models gain little from a second thread and much from a second process: what needs hours of one core is done in
about half the time by two. The stages are the same: whoever interrupts it may go on with another number of jobs.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import cache
from multiprocessing.synchronize import Event

from polyreply.errors import PolyReplyError
from polyreply.experiments.cache import Diverged
from polyreply.experiments.plan import Plan, duration
from polyreply.experiments.run import Order, open_lab, plan_for
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab
from polyreply.progress import Notify

_Running = dict[Future[str], Stage]
_LOOK = 1.0
"""Seconds between looks at whether a process should end."""
_is_told_to_end = threading.Event()


def make_at_once(names: Sequence[str], order: Order, jobs: int, notify: Notify) -> None:
    """Makes the missing stages of some experiments, so many at once; not those that are timed, which run alone.

    What fails does not stop the others: errors are raised when nothing else can be made.
    """
    lab, running, failed = open_lab(order, is_plan=True), _Running(), dict[str, str]()
    context = multiprocessing.get_context("spawn")
    leave = context.Event()
    with ProcessPoolExecutor(jobs, context, _begin, (jobs, leave)) as pool:
        try:
            while found := _next(plan_for(lab, names), running, failed, jobs):
                plan, ready = found
                for stage in ready:
                    running[pool.submit(_make, order, tuple(names), stage.name)] = stage
                    notify(f"{stage.name} begins, {len(plan.missing)} stages are missing", 0.0)
                for stage in _collect(running, failed):
                    notify(f"{stage.name} {_told(stage, failed)}", 1.0)
        except BrokenExecutor as error:
            unfinished = ", ".join(stage.name for stage in running.values())
            raise PolyReplyError(
                f"a process died while it made one of {unfinished}, perhaps for want of memory; what is made is kept: "
                "run the same command again, perhaps with fewer --jobs"
            ) from error
        except BaseException:
            leave.set()  # trainings save their last step before they do
            raise
    if failed:
        raise PolyReplyError("; ".join(failed.values()))


def _next(plan: Plan, running: _Running, failed: Collection[str], jobs: int) -> tuple[Plan, list[Stage]] | None:
    """The plan, and the stages to begin with now; None when all is made that can be."""
    busy = {stage.name for stage in running.values()} | set(failed)
    ready = [stage for stage in ready_stages(plan.missing) if stage.name not in busy]
    return (plan, ready[: jobs - len(running)]) if ready or running else None


def ready_stages(missing: Iterable[Stage]) -> list[Stage]:
    """Those that can be made now: all they stand on and are chosen by is there, and no longer waits for a choice."""
    return [stage for stage in missing if not stage.is_timed and _is_ready(stage)]


def _is_ready(stage: Stage) -> bool:
    if any(map(_waits, stage.needs)) or (stage.is_provisional and not stage.is_trial):
        return False
    if any(need.diverged for need in stage.needs):  # since the plan was made
        return False
    return all(other.is_made for other in (*stage.needs, *(() if stage.is_trial else stage.choices)))


def _waits(stage: Stage) -> bool:
    """Whether it, or something it stands on, may give way to another."""
    return stage.is_provisional or any(map(_waits, stage.needs))


def _collect(running: _Running, failed: dict[str, str]) -> list[Stage]:
    """Waits until a stage is done, and notes what went wrong; the stages that are made or failed."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    results = [(future, future.result()) for future in done]  # raises if a process died, with all that ran still noted
    found = [(running.pop(future), error) for future, error in results]
    failed |= {stage.name: error for stage, error in found if error}
    return [stage for stage, _ in found]


def _told(stage: Stage, failed: Collection[str]) -> str:
    if stage.name in failed:
        return "failed; the rest goes on, and what went wrong is told at the end"
    return "diverged" if stage.diverged else f"is made, {duration(stage.seconds())}"


def _begin(jobs: int, leave: Event) -> None:
    """In a new process: its share of the threads. It ends when it is told to, or with the process that began it."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever has nothing to do has nothing to interrupt
    threading.Thread(target=_end, args=(leave,), daemon=True).start()


def _end(leave: Event) -> None:
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive() and not leave.wait(_LOOK):
        pass
    _is_told_to_end.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _make(order: Order, names: Sequence[str], name: str) -> str:
    """In a process of its own: makes a stage; what went wrong, or nothing. A training that diverged is a result."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        lab = _lab(order)
        found = [stage for stage in plan_for(lab, names).missing if stage.name == name]
        if not found:
            return f"{name}: expected it in the plan, found that the data has changed meanwhile; run the command again"
        _make_stage(lab, found[0])
    except (PolyReplyError, OSError) as error:
        return f"{name}: {error}"
    except Exception as error:
        traceback.print_exc()
        return f"{name}: {type(error).__name__}: {error}"
    finally:
        if _is_told_to_end.is_set():
            os._exit(1)  # a training has saved its last step by now
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return ""


def _make_stage(lab: Lab, stage: Stage) -> None:
    try:
        lab.workshop.make(stage)
    except Diverged:
        if not stage.diverged:
            raise


@cache
def _lab(order: Order) -> Lab:
    return open_lab(order, is_plan=True)
