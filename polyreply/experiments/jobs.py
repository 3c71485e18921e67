"""Several tasks at once, each in its own process as soon as the tasks it needs are done.

Small models gain little from a second thread and much from a second process: two jobs take about half the time of one.
The tasks and their results are the same, so an interrupted run may continue with another number of jobs.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import cache as cached
from multiprocessing.synchronize import Event

from polyreply.errors import DivergedError, PolyReplyError
from polyreply.experiments.cache import Task
from polyreply.experiments.plan import duration
from polyreply.experiments.run import Request, open_systems, plan_for
from polyreply.experiments.systems import Systems
from polyreply.progress import Notify

_POLL_SECONDS = 1.0
"""How often a process looks whether it should end."""
_is_ending = threading.Event()


def run_jobs(names: Sequence[str], request: Request, jobs: int, notify: Notify) -> None:
    """Run the missing tasks of some experiments, `jobs` at once; not those that measure time, which run alone later.

    A failure does not stop the other tasks: errors are raised when nothing else can run.
    """
    systems, running, errors = open_systems(request, is_plan=True), dict[Future[str], Task](), dict[str, str]()
    processes = multiprocessing.get_context("spawn")
    stop = processes.Event()
    with ProcessPoolExecutor(jobs, processes, _start_process, (jobs, stop)) as pool:
        try:
            while True:
                missing = plan_for(systems, names).missing  # again each time: a diverged training changes it
                busy = {task.name for task in running.values()} | errors.keys()
                ready = [task for task in ready_tasks(missing) if task.name not in busy]
                if not ready and not running:
                    break
                for task in ready[: jobs - len(running)]:
                    running[pool.submit(_run_task, request, tuple(names), task.name)] = task
                    notify(f"{task.name} starts, {len(missing)} tasks are missing", 0.0)
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                results = [(future, future.result()) for future in finished]  # raises if a process died
                for future, error in results:
                    task = running.pop(future)
                    if error:
                        errors[task.name] = error
                    notify(f"{task.name} {_outcome(task, error)}", 1.0)
        except BrokenExecutor as error:
            unfinished = ", ".join(task.name for task in running.values())
            raise PolyReplyError(
                f"a process died while it ran one of {unfinished}, perhaps for lack of memory; finished work is kept: "
                "run the same command again, perhaps with fewer --jobs"
            ) from error
        except BaseException:
            stop.set()  # trainings save their last step before they end
            raise
    if errors:
        raise PolyReplyError("; ".join(errors.values()))


def _outcome(task: Task, error: str) -> str:
    if error:
        return "failed; the other tasks continue, and the error is reported at the end"
    return "diverged" if task.diverged else f"is done, {duration(task.seconds)}"


def ready_tasks(missing: Iterable[Task]) -> list[Task]:
    """The tasks that can run now, except for those that have to run alone."""
    return [task for task in missing if not task.runs_alone and _is_ready(task)]


def _is_ready(task: Task) -> bool:
    """Whether all it needs and is chosen by is done, usable, and can no longer be replaced by another choice."""
    if any(map(_is_undecided, task.needs)) or (task.is_provisional and not task.is_trial):
        return False
    if any(need.diverged for need in task.needs):  # since the plan was made
        return False
    return all(other.is_done for other in (*task.needs, *(() if task.is_trial else task.trials)))


def _is_undecided(task: Task) -> bool:
    return task.is_provisional or any(map(_is_undecided, task.needs))


# In the processes


def _start_process(jobs: int, stop: Event) -> None:
    """Take a share of the threads, and end when asked to or with the process that started this one."""
    import torch

    def watch() -> None:
        parent = multiprocessing.parent_process()
        while parent is not None and parent.is_alive() and not stop.wait(_POLL_SECONDS):
            pass
        _is_ending.set()
        os.kill(os.getpid(), signal.SIGTERM)

    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an idle process has nothing to interrupt
    threading.Thread(target=watch, daemon=True).start()


def _run_task(request: Request, names: Sequence[str], name: str) -> str:
    """Run a task by its name; the error, or an empty text. A training that diverges is a result, not an error."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        systems = _systems(request)
        task = next((task for task in plan_for(systems, names).missing if task.name == name), None)
        if task is None:
            return f"{name}: expected it in the plan, found that the data has changed meanwhile; run the command again"
        try:
            systems.cache.get(task)
        except DivergedError:
            if not task.diverged:
                raise
    except (PolyReplyError, OSError) as error:
        return f"{name}: {error}"
    except Exception as error:
        traceback.print_exc()
        return f"{name}: {type(error).__name__}: {error}"
    finally:
        if _is_ending.is_set():
            os._exit(1)  # a training has saved its last step by now
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return ""


@cached
def _systems(request: Request) -> Systems:
    return open_systems(request, is_plan=True)
