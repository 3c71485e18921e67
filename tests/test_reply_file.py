"""Replies to a file: resumed after an interrupt, and shared by several processes with the same result."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice

import pytest
import torch
from forks import context, free_port, places
from pair import SENTENCES
from safetensors.torch import load_file, save_file

from polyreply.cli import main
from polyreply.cli.reply import reply
from polyreply.data.read import read_dialogues
from polyreply.distributed import Processes, connected
from polyreply.errors import PolyReplyError
from polyreply.reply_file import (
    Job,
    Parts,
    _rows,
    _settings,
    batch_line,
    open_part,
    part_path,
    part_paths,
    reply_to_file,
)


@pytest.fixture
def source(tmp_path, write_rows):
    """Writes an input of so many rows."""

    def write(rows):
        texts = (f"{SENTENCES[number % 4]} {number}" for number in range(rows))
        return write_rows(tmp_path / "in.jsonl", ({"context": text, "response": "x"} for text in texts))

    return write


def torchrun(*arguments):
    launcher = ("torch.distributed.run", "--nproc-per-node", 2, "--master-port", free_port(), "-m")
    command = [sys.executable, "-m", *map(str, launcher), "polyreply", "reply", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def two_processes(folder, *arguments):
    """What a launcher starts, without one that ends the others when a process has died."""
    processes = [context.Process(target=run_as, args=(place, arguments, folder)) for place in places(2)]
    for process in processes:
        process.start()
    return processes


def run_as(place, arguments, folder):
    """The command line as one of several processes; what it shows goes to a file named after its rank."""
    os.environ |= place
    with (folder / f"shown.{place['RANK']}").open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.argv = ["polyreply", "reply", *map(str, arguments)]
    main.run()


def shown_by(rank, folder):
    return [line for line in (folder / f"shown.{rank}").read_text().splitlines() if line.strip()]


def until_written(*parts, seconds=60):
    end = time.monotonic() + seconds
    while not all(part.exists() and part.stat().st_size for part in parts):
        assert time.monotonic() < end
        time.sleep(0.02)


# One process.


@pytest.fixture
def dialogues(tmp_path, write_rows):
    rows = [{"context": f"{text} {n}", "response": "x"} for n in range(3) for text in SENTENCES[:3]]
    rows[4]["context"] = ["How are you?", "Fine. And you?"]
    return write_rows(tmp_path / "in.jsonl", rows), [row["context"] for row in rows]


def rows_of(path):
    data = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()]


class Stopped(Exception):
    pass


class Fragile:
    """A model that is interrupted after so many batches."""

    def __init__(self, model, batches):
        self.model, self.batches, self.seen = model, batches, []

    def reply(self, contexts, **options):
        if len(self.seen) == self.batches:
            raise Stopped
        self.seen.append([dialogue.context for dialogue in contexts])
        return self.model.reply(contexts, **options)


SAMPLED = {"do_sample": True, "seed": 3}


def test_an_interrupted_run_resumes_with_the_same_result(tmp_path, model, dialogues):
    path, _ = dialogues
    whole, broken = (Job(path, tmp_path / name, SAMPLED, batch_size=2) for name in ("whole.jsonl", "broken.jsonl"))
    reply_to_file(model, whole)
    with pytest.raises(Stopped):
        reply_to_file(Fragile(model, 2), broken)
    part = part_path(broken.output, 0)
    assert not broken.output.exists() and len(rows_of(part)) == 2
    with part.open("ab") as stream:  # as if killed in the middle of the third batch's second row
        stream.write(batch_line(2, rows_of(whole.output)[4:6])[:-20])
    second = Fragile(model, 9)
    assert reply_to_file(second, broken)["resumed_after"] == 4
    assert len(second.seen) == 3
    assert broken.output.read_bytes() == whole.output.read_bytes()
    assert len({json.dumps(row["responses"]) for row in rows_of(whole.output)}) > 5
    assert [one.name for one in tmp_path.iterdir() if "partial" in one.name] == []


def row(context, response="mine"):
    return {"context": context, "responses": [response], "decoders": [0], "logprobs": [0.0]}


def test_rows_of_another_input_or_other_settings_are_not_mixed(tmp_path, model, dialogues):
    path, contexts = dialogues
    job = Job(path, tmp_path / "out.jsonl", {}, batch_size=1)
    part = part_path(job.output, 0)
    part.write_bytes(batch_line(0, [row(contexts[0])]) + batch_line(1, [row("else")]))
    with pytest.raises(PolyReplyError, match=r"partial.0: expected the contexts of batch 2 of .*in.jsonl, found other"):
        reply_to_file(model, job)
    part.write_bytes(batch_line(0, [row(contexts[0])]) + batch_line(9, [row("else")]))
    with pytest.raises(PolyReplyError, match=r"expected batches of .*in.jsonl, found more than it has"):
        reply_to_file(model, job)
    part.write_bytes(batch_line(0, [row(contexts[0])]))
    with pytest.raises(Stopped):
        reply_to_file(Fragile(model, 0), job)
    before = {"model": "", "context_turns": 1, "batch_size": 1}
    for settings, found in ((before | {"decode": "beam"}, "decode beam"), (before | {"batch_size": 2}, "batch_size 2")):
        job.settings_file.write_text(json.dumps(settings))
        with pytest.raises(PolyReplyError, match=rf"was started with {found}, found"):
            reply_to_file(model, job)
    anew = Job(path, job.output, {}, overwrite=True)
    assert reply_to_file(model, anew)["resumed_after"] == 0 and len(rows_of(job.output)) == 9


def test_batches_left_by_any_number_of_processes_in_any_order_are_kept(tmp_path, model, dialogues):
    path, contexts = dialogues
    job = Job(path, tmp_path / "out.jsonl", {}, batch_size=2)
    for rank, batches in ((0, (2, 0)), (11, (3,))):
        lines = (batch_line(b, [row(context, f"{b}") for context in contexts[2 * b : 2 * b + 2]]) for b in batches)
        part_path(job.output, rank).write_bytes(b"".join(lines) + b'{"batch": 1, "ro')
    assert [one.name for one in part_paths(job.output)] == ["out.jsonl.partial.0", "out.jsonl.partial.11"]
    rest = Fragile(model, 9)
    assert reply_to_file(rest, job)["resumed_after"] == 6
    assert [len(batch) for batch in rest.seen] == [2, 1]
    rows = rows_of(job.output)
    assert [one["context"] for one in rows] == contexts
    assert [one["responses"] for one in rows[:2] + rows[4:8]] == [[f"{b}"] for b in (0, 0, 2, 2, 3, 3)]
    assert not part_paths(job.output)


def test_a_run_killed_while_joining_the_parts_repeats_no_batch(tmp_path, model, dialogues):
    path, contexts = dialogues
    job = Job(path, tmp_path / "out.jsonl", {}, batch_size=9)
    part_path(job.output, 1).write_bytes(batch_line(0, [row(context) for context in contexts]))
    (tmp_path / ".out.jsonl.killed.tmp").write_text('{"context": "half a r')
    assert reply_to_file(Fragile(model, 0), job)["resumed_after"] == 9
    assert rows_of(job.output) == [row(context) for context in contexts]
    assert [one.name for one in tmp_path.iterdir() if "partial" in one.name] == []


def test_a_batch_in_two_parts_is_an_error(tmp_path):
    for rank in range(2):
        part_path(tmp_path / "out.jsonl", rank).write_bytes(batch_line(3, [row("a")]))
    with pytest.raises(PolyReplyError, match=r"partial.1: expected each batch once, found batch 4 again"):
        Parts(part_paths(tmp_path / "out.jsonl"))


def test_an_input_without_rows_leaves_existing_parts_alone(tmp_path, model):
    path = tmp_path / "in.jsonl"
    path.write_text("{bad row\n")
    part = part_path(tmp_path / "out.jsonl", 0)
    part.write_bytes(batch_line(0, [row("a")]))
    with pytest.raises(PolyReplyError, match="expected dialogue rows, found none"):
        reply_to_file(model, Job(path, tmp_path / "out.jsonl", {}, overwrite=True))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl.partial.0"]
    assert rows_of(part) == [{"batch": 0, "rows": [row("a")]}]


def test_the_input_is_never_the_output(tmp_path, dialogues):
    path, _ = dialogues
    for output in (path, tmp_path):
        with pytest.raises(PolyReplyError, match="expected a file to write"):
            Job(path, output, {}, overwrite=True).check()


def test_batches_of_one_seed_draw_different_numbers(model, dialogues):
    path, _ = dialogues
    [first, *_] = read_dialogues(path)
    drawn = [_rows(model, [first], SAMPLED, number) for number in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


# Several processes.


class Counting:
    """A model that knows how many batches it has replied to."""

    def __init__(self, model):
        self.model, self.batches = model, 0

    def reply(self, contexts, **options):
        self.batches += 1
        return self.model.reply(contexts, **options)


def test_torchrun_gives_the_bytes_of_one_process(tmp_path, folder, model, source):
    path, one, two = source(50), tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    reply_to_file(model, Job(path, one, {"do_sample": True, "seed": 3}, batch_size=8))
    options = ("--sample", "--seed", 3, "--batch-size", 8)
    run = torchrun("-i", path, "-o", two, "--model", folder, *options)
    shown, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert shown == f"50 rows written to {two}\n"
    assert two.read_bytes() == one.read_bytes()
    assert [one.name for one in tmp_path.iterdir() if "partial" in one.name] == []


def test_fewer_batches_than_processes(tmp_path, folder, model, source):
    path, one, two = source(3), tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    reply_to_file(model, Job(path, one, {}))
    for process in two_processes(tmp_path, "-i", path, "-o", two, "--model", folder):
        process.join(60)
        assert process.exitcode == 0, shown_by(0, tmp_path) + shown_by(1, tmp_path)
    assert shown_by(0, tmp_path) == [f"3 rows written to {two}"] and shown_by(1, tmp_path) == []
    assert two.read_bytes() == one.read_bytes()


def test_one_process_resumes_the_work_of_two_killed_ones(tmp_path, folder, model, source):
    path, one, two = source(400), tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    arguments = ("-i", path, "-o", two, "--model", folder, "--batch-size", 4, "--sample", "--seed", 1)
    processes = two_processes(tmp_path, *arguments)
    until_written(part_path(two, 0), part_path(two, 1))
    for process in processes:
        process.kill()
        process.join()
    assert not two.exists()
    kept = sum(part.read_bytes().count(b"\n") for part in part_paths(two))
    assert 2 <= kept < 100
    options = {"decode": "decoders", "k": None, "m": None, "seed": 1, "do_sample": True}
    rest = Counting(model)
    reply_to_file(rest, Job(path, two, options, batch_size=4), model_name=str(folder))
    reply_to_file(model, Job(path, one, options, batch_size=4))
    assert rest.batches == 100 - kept
    assert two.read_bytes() == one.read_bytes()


@pytest.mark.parametrize("launcher", ["waits", "stops the others"])
def test_a_lost_process_ends_the_others_with_one_line(tmp_path, folder, source, launcher):
    output = tmp_path / "out.jsonl"
    arguments = ("-i", source(400), "-o", output, "--model", folder, "--batch-size", 4)
    main_process, other = two_processes(tmp_path, *arguments)
    until_written(part_path(output, 0), part_path(output, 1))
    other.kill()
    if launcher == "stops the others":
        main_process.terminate()
    main_process.join(60)
    assert main_process.exitcode == 2
    [line] = shown_by(0, tmp_path)
    assert "process" in line and "start the same command again" in line
    assert not output.exists() and len(part_paths(output)) == 2
    done = part_path(output, 0).read_bytes().count(b"\n")
    assert done == 50 if launcher == "waits" else done < 50


def test_a_run_refuses_parts_that_another_run_is_writing(tmp_path, model, source):
    job = Job(source(3), tmp_path / "out.jsonl", {}, overwrite=True)
    with open_part(part_path(job.output, 1)), pytest.raises(PolyReplyError, match=r"partial.1: another run is still"):
        reply_to_file(model, job)
    assert reply_to_file(model, job)["rows"] == 3


def stop_after_some_batches(model, job, name):
    """Begins the work, as one whose process ends after two batches."""
    job.settings_file.write_text(json.dumps(_settings(job, name)))
    lines = (batch_line(number, _rows(model, batch, {}, number)) for number, batch in islice(job.batches(), 2))
    part_path(job.output, 0).write_bytes(b"".join(lines))


def test_rows_of_another_model_of_the_same_name_are_not_mixed(tmp_path, folder, model, source):
    place = shutil.copytree(folder, tmp_path / "model")
    job = Job(source(20), tmp_path / "out.jsonl", {}, batch_size=4)
    stop_after_some_batches(model, job, str(place))
    with pytest.raises(PolyReplyError, match="was started with dtype fastest, found bfloat16"):
        reply_to_file(model, replace(job, dtype="bfloat16"), model_name=str(place))
    weights = load_file(place / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, place / "model.safetensors")
    with pytest.raises(PolyReplyError, match="was started with weights"):
        reply_to_file(model, job, model_name=str(place))
    shutil.rmtree(place)
    shutil.copytree(folder, place)
    assert reply_to_file(model, job, model_name=str(place))["resumed_after"] == 8


def test_ctrl_c_reports_that_finished_batches_are_kept(tmp_path, folder, source, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("polyreply.reply_file._rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reply(model=str(folder), input=source(3), output=tmp_path / "out.jsonl")
    assert "finished batches are kept: start the same command again" in capsys.readouterr().err


def test_several_processes_need_an_input(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PolyReplyError, match="expected --input and --output, the work that 2 processes can share"):
        reply(["hello"], model="nothing")


def test_world_size_without_a_launcher(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(PolyReplyError, match=r"cannot find each other .*RANK.* or unset WORLD_SIZE"), connected(""):
        pass


@pytest.mark.parametrize(
    "device, gpus, expected",
    [("auto", 4, "cuda:3"), ("cuda", 2, "cuda:1"), ("cuda:0", 4, "cuda:0"), ("cpu", 4, "cpu"), ("auto", 0, "auto")],
)
def test_each_process_has_its_own_gpu(monkeypatch, device, gpus, expected):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert Processes(7, 8).own_device(device) == expected
    assert Processes().own_device(device) == device
