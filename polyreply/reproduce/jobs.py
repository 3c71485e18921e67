"""Several stages at once, each in a process of its own as soon as all it stands on is there.

Small models gain little from a second thread and much from a second process: what needs hours of one core is done in
half the time by two. The stages are the same, so that whoever interrupts it may go on with another number of jobs.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import cache
from multiprocessing import get_context

from polyreply.errors import PolyReplyError
from polyreply.progress import Notify
from polyreply.reproduce.lab import Lab
from polyreply.reproduce.plan import Plan
from polyreply.reproduce.run import Order, open_lab, plan_for
from polyreply.reproduce.stage import Stage
from polyreply.reproduce.workshop import Diverged

_Running = dict[Future[str], Stage]


def make_at_once(names: Sequence[str], order: Order, jobs: int, notify: Notify) -> None:
    """Makes the missing stages of some experiments, so many at once; not those that are timed, which run alone.

    What fails does not stop the others: the first error is raised when nothing else can be made.
    """
    lab, running, failed = open_lab(order, is_plan=True), _Running(), dict[str, str]()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (threads,)) as pool:
        try:
            while found := _next(plan_for(lab, names), running, failed, jobs):
                plan, ready = found
                for stage in ready:
                    running[pool.submit(_make, order, tuple(names), stage.name)] = stage
                    notify(f"{stage.name}, {len(plan.missing)} stages to do", 0.0)
                _collect(running, failed)
        except BrokenExecutor as error:
            unfinished = ", ".join(stage.name for stage in running.values())
            raise PolyReplyError(
                f"a process died while it made one of {unfinished}, perhaps for want of memory; what is made is kept: "
                "run the same command again, perhaps with fewer --jobs"
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if failed:
        raise PolyReplyError(next(iter(failed.values())))


def _next(plan: Plan, running: _Running, failed: Collection[str], jobs: int) -> tuple[Plan, list[Stage]] | None:
    """The plan, and the stages to begin with now; None when all is made that can be."""
    busy = {stage.name for stage in running.values()} | set(failed)
    ready = [stage for stage in ready_stages(plan.missing) if stage.name not in busy]
    return (plan, ready[: jobs - len(running)]) if ready or running else None


def ready_stages(missing: Iterable[Stage]) -> list[Stage]:
    """Those whose needs, and the trainings they are chosen by, are all there."""
    return [
        stage
        for stage in missing
        if not stage.is_timed and all(other.is_made for other in (*stage.needs, *stage.choices))
    ]


def _collect(running: _Running, failed: dict[str, str]) -> None:
    """Waits until a stage is done, and notes what went wrong."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        if error := future.result():
            failed[running[future].name] = error
        del running[future]


def _begin(threads: int) -> None:
    """In a new process: its share of the cores."""
    import torch

    torch.set_num_threads(threads)


def _make(order: Order, names: Sequence[str], name: str) -> str:
    """In a process of its own: makes a stage; what went wrong, or nothing. A training that diverged is a result."""
    lab = _lab(order)
    try:
        stage = next(stage for stage in plan_for(lab, names).missing if stage.name == name)
        lab.workshop.make(stage)
    except Diverged:
        return ""
    except (PolyReplyError, OSError) as error:
        return f"{name}: {error}"
    return ""


@cache
def _lab(order: Order) -> Lab:
    return open_lab(order, is_plan=True)
