"""A log has every step once, whatever killed the run, and holds nothing but JSON."""

import json
import math

import pytest

from polyreply.em.em_step import StepRecord
from polyreply.errors import PolyReplyError
from polyreply.training.run_log import RunLog, log_values, read
from polyreply.training.validation import ValidationRecord


def write(path, steps):
    with RunLog(path) as log:
        for step in steps:
            log.write("step", {"step": step, "loss": 1 / step})
            if step % 5 == 0:
                log.write("validation", {"step": step})


def steps_of(path):
    return [line["step"] for line in read(path) if line["kind"] == "step"]


def test_lines_are_on_disk_at_once_under_one_header(tmp_path):
    path = tmp_path / "run" / "log.jsonl"
    log = RunLog(path)
    assert not path.exists()
    log.write("step", {"step": 1})
    log.sync()
    assert path.read_text() == '{"kind":"header","schema_version":1}\n{"kind":"step","step":1}\n'
    log.close()
    write(path, [2])
    assert path.read_text().count("header") == 1 and steps_of(path) == [1, 2]


@pytest.mark.parametrize("torn", [b"", b'{"kind":"step","st', b"\x00\x00"])
@pytest.mark.parametrize(("at", "left"), [(0, 0), (5, 5), (7, 7), (12, 12), (99, 12)])
def test_a_resumed_run_has_every_step_once(tmp_path, torn, at, left):
    path = tmp_path / "log.jsonl"
    write(path, range(1, 13))
    path.write_bytes(path.read_bytes() + torn)
    assert RunLog(path).cut_after(at) == left
    assert steps_of(path) == [*range(1, left + 1)]
    assert ({"kind": "validation", "step": 5} in read(path)) == (left >= 5)
    write(path, range(left + 1, 16))
    whole = tmp_path / "whole.jsonl"
    write(whole, range(1, 16))
    assert path.read_bytes() == whole.read_bytes()
    assert {one.name for one in tmp_path.iterdir()} == {"log.jsonl", "whole.jsonl"}


def test_cutting_goes_on_with_an_open_log(tmp_path):
    log = RunLog(tmp_path / "log.jsonl")
    assert log.cut_after(3) == 0
    for step in (1, 2, 3):
        log.write("step", {"step": step})
    log.write("note", {"text": "without a step"})
    log.write("step", {"step": 4})
    log.write("note", {"text": "after the cut"})
    log.cut_after(3)
    log.write("step", {"step": 4})
    assert [line.get("step") for line in read(log.path)] == [1, 2, 3, None, 4]


def test_nothing_is_appended_to_half_a_line(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, [1, 2])
    path.write_bytes(path.read_bytes()[:-4])
    write(path, [2, 3])
    assert steps_of(path) == [1, 2, 3]
    path.write_bytes(b'{"kind":"hea')
    write(path, [1])
    assert steps_of(path) == [1] and path.read_text().startswith('{"kind":"header"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind":"step"}\n', "no schema version"),
        ('{"kind":"header","schema_version":9}\n', "upgrade polyreply"),
        ('{"kind":"header","schema_version":1}\nnot json\n{"kind":"step"}\n', "log.jsonl:2: expected an object"),
    ],
)
def test_damaged_and_newer_logs_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    for work in (lambda: read(path), lambda: RunLog(path).cut_after(1), lambda: RunLog(path).write("step", {})):
        with pytest.raises(PolyReplyError, match=message):
            work()
    assert path.read_text() == text
    with pytest.raises(PolyReplyError, match="no such log"):
        read(tmp_path / "none.jsonl")


def test_records_are_rounded_and_have_no_nan(tmp_path):
    step = StepRecord(1, 0, math.nan, 1e-3, 8, 0.123456789, 0.0, math.inf, (1 / 3, 2 / 3), 0.5, None)
    found = log_values(step)
    assert found["loss"] is None and found["posterior_distance"] is None
    assert found["usage_K"] == [0.333333, 0.666667]
    check = ValidationRecord(1, 2.0, {"dist1": math.nan, "dist2": 3.25}, [{"context": "你好", "responses": ["a"]}], 1.0)
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write("step", found)
        log.write("validation", log_values(check))
        log.write("alarm", {"step": 1, "values": [math.nan]})

    def refuse(word):
        raise AssertionError(word)

    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[1:] == read(tmp_path / "log.jsonl")
    assert lines[2]["metrics"] == {"dist1": None, "dist2": 3.25} and lines[2]["replies"][0]["context"] == "你好"
    assert lines[3]["values"] == [None]
