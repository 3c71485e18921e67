"""`polyreply study new|serve|results|simulate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyreply.errors import MissingExtraError, PolyReplyError

if TYPE_CHECKING:
    from polyreply.study.folder import Study
    from polyreply.study.results import Results

study = typer.Typer(
    help="Blind human evaluation: which of two systems replies better?",
    no_args_is_help=True,
    rich_markup_mode=None,
)

StudyFolder = Annotated[Path, typer.Argument(metavar="STUDY", help="A folder that `polyreply study new` made.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@study.command()
def new(
    systems: Annotated[
        list[str] | None,
        typer.Argument(metavar="RESPONSES …", help="A response file for each system; NAME=FILE names a system."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The study folder to make.")] = None,
    contexts: Annotated[
        int | None, typer.Option(min=1, help="Contexts to sample; by default 100, or all if there are fewer.")
    ] = None,
    annotators: Annotated[str, typer.Option(help="How many annotators, or their names: anna,bo,chen.")] = "5",
    votes: Annotated[
        int | None, typer.Option(min=1, help="Annotators who judge each comparison; by default all.")
    ] = None,
    questions: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Questions of the wording to ask; by default all.")
    ] = None,
    wording: Annotated[str, typer.Option(help="en, zh, or a YAML file with questions and texts of the page.")] = "en",
    pair: Annotated[
        list[str] | None,
        typer.Option(metavar="ONE:TWO", help="Compare these two systems; may be repeated. By default all pairs."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=0, help="Comparisons per question that each annotator sees again later.")
    ] = 0,
    gold: Annotated[
        int, typer.Option(min=0, help="Checks with a known answer per question, made from the responses.")
    ] = 0,
    gold_file: Annotated[
        Path | None, typer.Option(help="Checks of your own: JSONL with question, context, better, worse.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random but ids and links.")] = 0,
    power: Annotated[
        str | None,
        typer.Option(
            metavar="WINS:LOSSES", help="Print how many judgements such a difference needs, in percent, and exit."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a study: sample contexts, pair systems, hide which is which, and share the work among annotators.

    The hypothesis of the one-sided test is that the first system of a pair is better, so name yours first.

    \b
    Examples:
      polyreply study new eqhard.jsonl beam.jsonl --out study
      polyreply study new ours=a.jsonl beam=b.jsonl nucleus=c.jsonl --pair ours:beam --pair ours:nucleus --out study
      polyreply study new a.jsonl b.jsonl --wording zh --annotators anna,bo,chen --repeats 10 --gold 5 --out study
      polyreply study new --power 48:33
    """
    from polyreply.study.create import StudySettings, name_systems, new_study
    from polyreply.study.wording import load_wording

    if not systems:
        if power is None:
            raise PolyReplyError("expected the response files of two systems or more, found none; name them")
        _print_power(power, None, as_json)
        return
    settings = StudySettings(
        contexts=contexts,
        annotators=_annotator_names(annotators),
        votes=votes,
        questions=_split(questions),
        pairs=tuple(_pair(text) for text in pair or ()),
        repeats=repeats,
        gold=gold,
        seed=seed,
    )
    planned = new_study(name_systems(systems), load_wording(wording), settings, gold_file)
    if power is not None:
        _print_power(power, planned, as_json)
        return
    _save(planned, out)
    _print_plan(planned, out, as_json)


def _annotator_names(text: str) -> tuple[str, ...]:
    if text.strip().isdigit():
        return tuple(f"annotator-{n}" for n in range(1, int(text) + 1))
    return _split(text)


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


def _pair(text: str) -> tuple[str, str]:
    one, colon, two = text.partition(":")
    if not colon:
        raise PolyReplyError(f"--pair: expected two systems as in ours:beam, found {text!r}; put a colon between them")
    return one.strip(), two.strip()


def _save(planned: "Study", out: Path | None) -> None:
    from polyreply.files import check_new_folder
    from polyreply.study.folder import save_study

    if out is None:
        raise PolyReplyError("--out: expected the study folder to make, found none; name one")
    check_new_folder(out, False, lambda folder: False)
    save_study(planned, out)


def _print_plan(planned: "Study", out: Path | None, as_json: bool) -> None:
    from polyreply.cli.display import print_json

    loads = [len(annotator.items) for annotator in planned.annotators]
    judgements = planned.settings["contexts"] * planned.settings["votes"]
    facts = {
        "study": str(out),
        "systems": [system.name for system in planned.systems],
        "questions": list(planned.questions),
        "contexts": planned.settings["contexts"],
        "annotators": len(loads),
        "items_per_annotator": [min(loads), max(loads)],
        "judgements_per_pair_and_question": judgements,
    }
    if as_json:
        print_json(facts)
        return
    load = str(loads[0]) if min(loads) == max(loads) else f"{min(loads)} or {max(loads)}"
    pairs = "1 pair" if len(planned.pairs) == 1 else f"{len(planned.pairs)} pairs"
    names, asked = (", ".join(part) for part in ([system.name for system in planned.systems], planned.questions))
    typer.echo(
        f"{out}: {pairs} of {names} on {planned.settings['contexts']} contexts; {asked}; {len(loads)} annotators with "
        f"{load} comparisons each; {judgements} judgements per pair and question\nnext: polyreply study serve {out}"
    )


def _print_power(text: str, planned: "Study | None", as_json: bool) -> None:
    """How many judgements a difference needs, and what a planned study would find."""
    from polyreply.cli.display import print_json
    from polyreply.study.power import ALPHA, check_difference, judgements_needed, power
    from polyreply.tables import Column, Table

    try:
        wins, losses = (float(part) / 100 for part in text.split(":"))
    except ValueError:
        raise PolyReplyError(f"--power: expected percentages as in 48:33, found {text!r}") from None
    check_difference(wins, losses)
    needed = {target: judgements_needed(wins, losses, target) for target in (0.8, 0.9)}
    rows: list[list[int | float]] = [[count, 100 * power(count, wins, losses)] for count in needed.values()]
    size = None if planned is None else planned.settings["contexts"] * planned.settings["votes"]
    if size is not None:
        rows.append([size, 100 * power(size, wins, losses)])
    if as_json:
        print_json({"wins": wins, "losses": losses, "alpha": ALPHA, "power": [[n, p / 100] for n, p in rows]})
        return
    notes = [f"One-sided binomial test without ties at {ALPHA}, for independent judgements of one pair and question."]
    if size is not None:
        notes.append(f"The study that these options plan has {size} (the last row); it was not written.")
    title = f"{100 * wins:g} % wins, {100 * losses:g} % losses, {100 * (1 - wins - losses):.3g} % ties"
    Table(title, ["judgements", Column("chance of significance, %", digits=1)], rows, notes).print()


@study.command()
def results(
    folder: StudyFolder,
    export: Annotated[
        Path | None,
        typer.Option(help="A folder for everything: tables, judgements as CSV and JSON, Label Studio, Argilla, plot."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="A plot of wins, ties and losses: .png, .svg or .pdf.")] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="ANNOTATOR", help="Leave out an annotator; may be repeated.")
    ] = None,
    format: Annotated[
        str, typer.Option("--format", "-f", help="terminal, markdown, latex, html, csv or json.")
    ] = "terminal",
    samples: Annotated[int, typer.Option(min=1, help="Resamples of the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export or plot.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON.")] = False,
) -> None:
    """Wins, ties and losses of each pair, with tests, agreement, annotators' consistency and a ranking.

    \b
    Examples:
      polyreply study results study
      polyreply study results study --format latex
      polyreply study results study --export results --plot results.png
      polyreply study results study --without annotator-3 --json
    """
    from polyreply.cli.display import print_json
    from polyreply.files import check_new_file, write_file
    from polyreply.plots import check_plot, image
    from polyreply.study.folder import load_study, open_answers
    from polyreply.study.plot import draw_results
    from polyreply.study.results import read_judgements, study_results
    from polyreply.tables import FORMATS

    if format not in FORMATS:
        raise PolyReplyError(f"format: expected one of {', '.join(FORMATS)}, found {format}; pass --format")
    if plot is not None:
        check_plot(plot)
        check_new_file(plot, overwrite)
    loaded = load_study(folder)
    judgements = read_judgements(loaded, open_answers(folder, loaded))
    found = study_results(loaded, judgements, without=without or (), samples=samples, seed=seed)
    if export is not None:
        from polyreply.study.exports import export_files

        used = [one for one in judgements if one.annotator not in (without or ())]
        _export(found, export_files(loaded, used), export, overwrite)
    if plot is not None:
        write_file(plot, image(draw_results(found), plot.suffix), overwrite=overwrite)
    if as_json:
        print_json(found.tree())
    elif format == "terminal":
        for table in found.tables():
            table.print()
    else:
        typer.echo(found.render(format), nl=False)
    for path in filter(None, (export, plot)):
        typer.echo(f"written to {path}", err=True)


def _export(found: "Results", files: dict[Path, str], out: Path, overwrite: bool) -> None:
    """Write all files of an export; the folder appears complete or not at all."""
    from polyreply.files import check_new_folder, new_folder, write_file
    from polyreply.plots import can_plot, image
    from polyreply.study.exports import to_json
    from polyreply.study.plot import draw_results

    check_new_folder(out, overwrite, lambda folder: (folder / "judgements.csv").is_file())
    contents: dict[Path, bytes | str] = dict(files)
    contents[Path("results.json")] = to_json(found.tree())
    for name, form in (("results.md", "markdown"), ("results.tex", "latex")):
        contents[Path(name)] = found.render(form)
    if found.judgements and can_plot():
        contents[Path("results.png")] = image(draw_results(found), ".png")
    with new_folder(out, overwrite) as scratch:
        for path, content in contents.items():
            write_file(scratch / "out" / path, content)


@study.command()
def simulate(
    folder: StudyFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the copy that scripted annotators fill.")],
    accuracy: Annotated[
        str, typer.Option(metavar="P,…", help="Probability of the true answer: one for all, or one each.")
    ] = "0.9",
    bias: Annotated[
        str, typer.Option(metavar="P,…", help="Probability of side 1 whatever it shows; negative: side 2.")
    ] = "0",
    ties: Annotated[float, typer.Option(help="Share of comparisons whose true answer is a tie.")] = 0.2,
    strength: Annotated[
        list[str] | None,
        typer.Option(metavar="SYSTEM=X", help="True strength in log-odds, 0 by default; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the answers.")] = 0,
) -> None:
    """Fill a copy of a study with scripted annotators of known accuracy and bias, to plan and to test.

    The copy is marked as simulated wherever its results appear; the study itself is not changed.

    \b
    Examples:
      polyreply study simulate study --out simulated --strength ours=0.5
      polyreply study simulate study --out simulated --accuracy 0.95,0.9,0.6 --bias 0,0,0.3 --ties 0.1
    """
    from polyreply.files import check_new_folder
    from polyreply.study.folder import load_study
    from polyreply.study.simulate import Script
    from polyreply.study.simulate import simulate as fill

    check_new_folder(out, False, lambda folder: False)
    pairs = [text.rpartition("=") for text in strength or ()]
    strengths = {name: number for name, _, text in pairs for number in _numbers(text, "--strength")}
    script = Script(_numbers(accuracy, "--accuracy"), _numbers(bias, "--bias"), ties, strengths, seed)
    filled = fill(load_study(folder), script, out)
    count = sum(len(annotator.items) for annotator in filled.annotators)
    typer.echo(f"{out}: {count} SIMULATED answers\nnext: polyreply study results {out}")


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise PolyReplyError(f"{option}: expected numbers as in 0.9,0.8, found {text!r}") from None


@study.command()
def serve(
    folder: StudyFolder,
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's need 0.0.0.0.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 8400,
    url: Annotated[
        str | None, typer.Option(help="Address in personal links, if annotators reach the server by another one.")
    ] = None,
) -> None:
    """Serve the annotators' page and the researcher's; prints a personal link for each.

    Every answer is on disk before the page moves on: the server may be stopped, or killed, at any time.

    \b
    Examples:
      polyreply study serve study
      polyreply study serve study --host 0.0.0.0 --port 80 --url https://study.example.org
    """
    from importlib.util import find_spec
    from urllib.parse import urlsplit

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise MissingExtraError("fastapi", "study", "a study's server")
    from polyreply.study.server import create_study_app, links
    from polyreply.web.app import LOCAL_HOSTS
    from polyreply.web.server import address_of, bind, is_local
    from polyreply.web.server import serve as run

    hosts = [*LOCAL_HOSTS, urlsplit(url).hostname or ""] if url else [*LOCAL_HOSTS] if is_local(host) else ["*"]
    app = create_study_app(folder, hosts)
    bound = bind(host, port)
    for name, link in links(folder, url or address_of(bound)).items():
        typer.echo(f"{name}: {link}")
    run(app, bound)
