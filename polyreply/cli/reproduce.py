"""`polyreply reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyreply.errors import DivergedError, PolyReplyError

if TYPE_CHECKING:
    from polyreply.experiments.plan import TaskPlan
    from polyreply.experiments.result import Result
    from polyreply.experiments.run import Request

_ALL = "all"


def reproduce(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME …] [key=value …]", help="Tables and figures (or all), and settings of the preset."
        ),
    ] = None,
    data: Annotated[
        str, typer.Option(help="A folder with train, valid and perhaps test, or the name of an embedded corpus.")
    ] = "chitchat",
    preset: Annotated[str, typer.Option(help="How large everything is: mini, smoke, flan or paper.")] = "mini",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the cache and the results.")] = Path(
        "runs/reproduce"
    ),
    select: Annotated[
        str | None,
        typer.Option(help="Choose each method's learning rate by mixture_nll or bleu2_f; short for rates.select=…"),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", min=1, help="Tasks to run at once, each in a process with its share of cores."),
    ] = 1,
    list_names: Annotated[bool, typer.Option("--list", help="List the tables and figures, and exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan or the results as JSON.")] = False,
) -> None:
    """Make a table or figure of the paper, from raw data to the rendered result.

    Trainings, replies and scores are cached in OUT/cache: a second run computes only what is missing, an interrupted
    one continues.

    \b
    Examples:
      polyreply reproduce --list
      polyreply reproduce table-em --data data/dailydialog --out runs/paper --jobs 2
      polyreply reproduce table-em figure-assignment seeds=[0,1,2] stage_2.steps=400
      polyreply reproduce all --preset paper --data data/weibo --dry-run
    """
    from polyreply.experiments.catalogue import TITLES

    if list_names:
        _print_list(TITLES, as_json)
        return
    names, overrides = _split(arguments or [])
    overrides += [f"rates.select={select}"] if select else []
    from polyreply.experiments.run import Request, open_systems, plan_for

    request = Request(data, preset, out, tuple(overrides))
    plan = plan_for(open_systems(request, is_plan=True), names)
    _print_plan(plan, request, jobs, dry_run and as_json)
    if dry_run:
        return
    if jobs > 1:
        from polyreply.experiments.jobs import run_jobs

        run_jobs(names, request, jobs, _ProgressLines())
    _run(names, request, as_json)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The names of experiments, each once, and the settings."""
    from polyreply.experiments.catalogue import TITLES, check_name

    names = [argument for argument in arguments if "=" not in argument]
    if not names:
        raise PolyReplyError("expected the name of a table or figure, found none; see `polyreply reproduce --list`")
    names = list(TITLES) if names == [_ALL] else list(dict.fromkeys(names))
    for name in names:
        check_name(name)
    return names, [argument for argument in arguments if "=" in argument]


def _print_list(titles: dict[str, str], as_json: bool) -> None:
    from polyreply.cli.display import print_json

    if as_json:
        print_json(titles)
        return
    width = max(map(len, titles))
    for name, title in titles.items():
        typer.echo(f"{name:<{width}}  {title}")


def _print_plan(plan: "TaskPlan", request: "Request", jobs: int, as_json: bool) -> None:
    """Print the plan; for people on standard error, because it comes before the result."""
    from polyreply.cli.display import print_json

    if as_json:
        missing = [task.name for task in plan.missing]
        print_json({"missing": missing, "done": plan.done, "seconds": round(plan.seconds_with(jobs))})
        return
    typer.echo(f"preset {request.preset} on {request.data}, in {request.out}", err=True)
    for line in plan.lines(jobs):
        typer.echo(line, err=True)


def _run(names: list[str], request: "Request", as_json: bool) -> None:
    from polyreply.cli.display import print_json
    from polyreply.experiments.run import open_systems
    from polyreply.experiments.run import reproduce as run
    from polyreply.training.view import TrainingView

    results, errors = {}, []
    for name in names:
        systems = open_systems(request, notify=_ProgressLines(), callbacks=[TrainingView()])
        try:
            result, files = run(name, request, systems)
        except DivergedError as error:  # the other experiments may not depend on that training
            errors.append(f"{name} cannot be made: {error}")
            continue
        results[name] = [str(path) for path in files]
        if not as_json:
            _print_result(result, files)
    if as_json:
        print_json(results)
    if errors:
        raise PolyReplyError("; ".join(errors))


class _ProgressLines:
    """Prints progress as plain lines: each task once, and every tenth of a long one."""

    def __init__(self) -> None:
        self._kind, self._tenth = "", 0

    def __call__(self, stage: str, share: float) -> None:
        kind, tenth = stage.partition(",")[0], int(10 * share)
        if kind != self._kind or tenth > self._tenth:
            typer.echo(f"… {stage}", err=True)
        self._kind, self._tenth = kind, tenth


def _print_result(result: "Result", files: list[Path]) -> None:
    from polyreply.experiments.report import CLAIMS

    for table in result.findings.tables:
        typer.echo()
        table.print()
    verdicts = result.findings.verdicts
    if verdicts:
        typer.echo(f"\n{CLAIMS}")
    width = max((len(one.outcome) for one in verdicts), default=0) + 1
    for one in verdicts:
        paper = f" (the paper: {one.paper})" if one.paper else ""
        typer.echo(f"  {one.outcome + ':':<{width}} {one.text}: {one.ours or '–'}{paper}")
    for line in ("", *result.findings.remarks, "", *(f"  {path}" for path in files)):
        typer.echo(line)
