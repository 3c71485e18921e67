"""`polyreply reply`: messages, standard input, a chat in a terminal, and files."""

import gzip
import io
import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from pair import SENTENCES

from polyreply.cli import main
from polyreply.cli.reply import chat, print_replies

MESSAGE = SENTENCES[0]


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Runs the command line in this process, which has torch already: its exit status, output and errors."""

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["polyreply", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as end:
            main.run()
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def dialogues(tmp_path, write_rows):
    rows = [{"context": f"{text} {n}", "response": "x"} for n in range(3) for text in SENTENCES[:3]]
    rows[4]["context"] = ["How are you?", "Fine. And you?"]
    return write_rows(tmp_path / "in.jsonl", rows), [row["context"] for row in rows]


def rows_of(path):
    data = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()]


def as_row(context, replies):
    columns = {"responses": "text", "decoders": "decoder", "logprobs": "logprob"}
    return {"context": context, **{name: [getattr(one, field) for one in replies] for name, field in columns.items()}}


# --- messages and standard input


def test_help_answers_without_heavy_imports():
    script = (
        "import sys; sys.argv[1:] = ['reply', '--help']\n"
        "from polyreply.cli.main import run\n"
        "try: run()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'numpy', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "polyreply reply" in done.stdout.split("Examples:")[1]


def test_messages_become_rows_of_json(run_here, folder, model):
    status, shown, errors = run_here("reply", MESSAGE, SENTENCES[1], "--model", folder, "--json", "--max-new-tokens", 4)
    assert status == 0, errors
    expected = [as_row(text, model.reply([text], max_new_tokens=4)[0]) for text in (MESSAGE, SENTENCES[1])]
    found = [json.loads(line) for line in shown.splitlines()]
    for one, other in zip(found, expected, strict=True):
        assert one == {**other, "logprobs": pytest.approx(other["logprobs"], abs=1e-4)}


def test_lines_of_standard_input_become_tables(run_here, folder, model):
    status, shown, errors = run_here("reply", "--model", folder, stdin=f"{MESSAGE}\n\n{SENTENCES[1]}\n")
    assert status == 0, errors
    assert shown.index(MESSAGE) < shown.index(SENTENCES[1])
    assert shown.count("probability") == 2
    best = max(model.reply(MESSAGE), key=lambda one: one.logprob)
    assert f"{best.logprob:.1f}" in shown


def test_the_table_names_the_decoders_manners(model, capsys):
    print_replies("", model.reply("Hello"), manners=["asks back", "declines", "agrees"])
    shown = capsys.readouterr().out
    assert [name in shown for name in ("manner", "asks back", "declines", "agrees")] == [True] * 4
    print_replies("", model.reply("Hello", decode="beam", k=2), "beam", ["asks back", "declines", "agrees"])
    assert "declines" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--input", "a.jsonl", "--output", "b.jsonl"], "a.jsonl: there is no such file"),
        (["hello", "--model", "nothing/at/all"], "no model at nothing/at/all"),
        (["--model", "MODEL"], "expected a message as an argument or lines on standard input, found none"),
        (["hello", "--model", "MODEL", "--decode", "magic"], "expected decode to be one of"),
        (["hello", "--model", "MODEL", "--temperature", "0.5"], "add do_sample=True (--sample)"),
        (["--input", "in.jsonl"], "--input and --output go together"),
        (["hello", "--input", "a", "--output", "b"], "expected messages or --input, found both"),
    ],
    ids=str,
)
def test_a_user_error_is_one_line(run_here, tmp_path, monkeypatch, folder, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, shown, errors = run_here("reply", *(folder if one == "MODEL" else one for one in arguments))
    assert status == 2 and shown == ""
    [line] = errors.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert not list(tmp_path.iterdir())


# --- the chat


def talk(model, *messages, **options):
    """The turns of a chat, and what it said beside the tables."""
    left, said = list(messages), []

    def ask(prompt):
        if not left:
            raise EOFError
        return left.pop(0)

    return chat(model, options, ask, said.append), said


def test_the_chat_keeps_the_turns_and_continues_with_the_chosen_or_the_likeliest_reply(model, capsys):
    turns, said = talk(model, "", "Hello", "7", "1", "And you?", "")
    first = model.reply("Hello")[1].text
    second = max(model.reply(("Hello", first, "And you?")), key=lambda one: one.logprob).text
    assert turns == ["Hello", first, "And you?", second]
    assert "expected one of 0, 1, 2, or Enter, found '7'" in said
    assert f"bot> {first}" in said and capsys.readouterr().out.count("probability") == 2


def test_the_chat_restarts_and_quits(model):
    assert len(talk(model, "Hello", "", "/new", "Bye", "")[0]) == 2
    assert talk(model, "Hello", "/new", "Bye", "/quit", "Hello")[0] == ["Bye"]


def test_a_terminal_gets_a_chat_and_ctrl_d_leaves_it(folder):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "polyreply", "reply", "--model", str(folder)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    try:
        assert "/quit leaves" in until(ours, "you> ")
        os.write(ours, b"Hello\n")
        assert "probability" in until(ours, "]> ")
        os.write(ours, b"\n")
        assert "bot> " in until(ours, "you> ")
        os.write(ours, b"\x04")
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        os.close(ours)


def until(terminal, mark, seconds=60):
    """What a terminal shows, up to a mark."""
    shown, end = "", time.monotonic() + seconds
    while mark not in shown:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


# --- files


@pytest.mark.parametrize("name", ["out.jsonl", "deep/out.jsonl.gz"])
def test_a_file_in_and_a_file_out(run_here, tmp_path, folder, model, dialogues, name):
    path, contexts = dialogues
    with path.open("ab") as stream:
        stream.write(b"{bad row\n")
    arguments = ("reply", "-i", path, "-o", tmp_path / name, "--model", folder, "--batch-size", 4, "--json")
    status, shown, errors = run_here(*arguments)
    assert status == 0, errors
    assert json.loads(shown) == {"output": str(tmp_path / name), "rows": 9, "resumed_after": 0}
    assert "1 bad rows skipped; the first: line 10, not JSON" in errors
    rows = rows_of(tmp_path / name)
    assert [row["context"] for row in rows] == contexts
    assert rows[4]["responses"] == [one.text for one in model.reply(tuple(contexts[4]))]
    assert all(row["decoders"] == [0, 1, 2] and len(row["logprobs"]) == 3 for row in rows)
    assert [one.name for one in (tmp_path / name).parent.iterdir() if "partial" in one.name] == []
    status, _, errors = run_here(*arguments)
    assert status == 2 and "--overwrite" in errors


def test_a_killed_run_resumes(run_here, tmp_path, folder, write_rows):
    path = write_rows(tmp_path / "in.jsonl", [{"context": f"{MESSAGE} {n}", "response": "x"} for n in range(3000)])
    arguments = ["reply", "-i", path, "-o", tmp_path / "out.jsonl", "--model", folder, "--batch-size", 8]
    process = subprocess.Popen([sys.executable, "-m", "polyreply", *map(str, arguments)], stderr=subprocess.DEVNULL)
    partial, end = tmp_path / "out.jsonl.partial.0", time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.wait()
    left = partial.read_bytes().count(b"\n") * 8
    assert 0 < left < 3000
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: left + 5]))
    status, shown, errors = run_here(*arguments, "--json")
    assert status == 0, errors
    assert json.loads(shown)["resumed_after"] == left
    assert [row["context"] for row in rows_of(tmp_path / "out.jsonl")] == [f"{MESSAGE} {n}" for n in range(left + 5)]
