"""The view tells the truth about a run, draws on a terminal and writes plain lines elsewhere, and survives NaN."""

import io
import math

import pytest
from rich.console import Console

from polyreply.em.em_step import StepRecord
from polyreply.training.recipe import ModelSettings, TrainRecipe
from polyreply.training.validation import ValidationRecord
from polyreply.training.view import Meter, TrainingView, plain_line, validation_line


class Clock:
    """Time that passes only when told to."""

    now = 100.0

    def __call__(self):
        return self.now


def record(step, usage=(0.5, 0.5), loss=3.0, **changes):
    values = {"samples": 30, "e_seconds": 0.6, "assign_seconds": 0.1, "m_seconds": 0.3, "max_posterior": 0.7}
    return StepRecord(step, 1, loss, 1e-3, usage_K=tuple(usage), **{**values, **changes})


def checked(step=10, responses=("yes", "no"), **metrics):
    numbers = {"bleu2_f": 6.31, "pairwise_bleu": 2.6, "captured": 0.314, **metrics}
    return ValidationRecord(step, 3.21, numbers, [{"context": ["a", "Are you in?"], "responses": [*responses]}], 4.2)


def drawn(view, width=100):
    console = Console(file=io.StringIO(), width=width, height=60, force_terminal=False)
    console.print(view._picture())
    return console.file.getvalue()


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=50, _environ={"TERM": "xterm"})


def opened(steps=10, decoders=2, method="eqhard-em", **options):
    """A view of a run that has just started."""
    view = TrainingView("a run", **options)
    view.on_start(TrainRecipe(method=method, steps=steps, model=ModelSettings(num_decoders=decoders)))
    return view


def plain(**options):
    console = Console(file=io.StringIO(), force_terminal=False)
    return opened(console=console, **options), console.file


def test_a_plain_line_says_how_far_how_well_and_how_fast():
    clock = Clock()
    meter = Meter(20, clock)
    clock.now += 99  # loading
    for step in range(1, 6):
        clock.now += 1
        meter.add(record(step, (0.25, 0.75), loss=step))
    assert plain_line(meter) == (
        "step 5/20 (25 %) | epoch 1 | loss 3.000 | lr 1.0e-03 | 30 samples/s | time: E 60 %, assign 10.0 %, M 30 % | "
        "max posterior 0.70 | usage 25.0 to 75.0 % | 0:15 left"
    )


def test_a_resumed_run_is_timed_by_the_steps_it_does():
    clock = Clock()
    meter = Meter(1000, clock)
    meter.add(record(901))
    assert meter.remaining == pytest.approx(99)
    clock.now += 2
    meter.add(record(902))
    assert meter.remaining == pytest.approx(98 * (1 + 2) / 2)


def test_numbers_forget_what_is_long_ago():
    meter = Meter(200)
    for step in range(1, 201):
        meter.add(record(step, (0, 1) if step <= 150 else (1, 0), loss=9 if step <= 150 else 2))
    assert meter.loss == 2 and meter.usage_K == [1, 0]


def test_plain_lines_come_every_few_seconds_and_at_the_end():
    clock = Clock()
    view, stream = plain(clock=clock, plain_seconds=10)
    for step in range(1, 11):
        view.on_step(record(step))
        clock.now += 4
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1/10", "4/10", "7/10", "10/10"]


def test_plain_output_has_no_control_characters():
    view, stream = plain()
    view.on_step(record(1))
    view.on_validation(checked())
    view.on_message("an alarm [bold]\x1b[31m\ton two\nlines")
    lines = stream.getvalue().split("\n")
    assert all(line.isprintable() for line in lines) and len(lines) == 5
    assert lines[1] == validation_line(checked()) and lines[3] == "lines" and "[bold]" in lines[2]


def test_a_validation_line_has_the_numbers_there_are():
    assert validation_line(checked()) == (
        "validation at step 10: NLL 3.210, BLEU2-F 6.3, Pairwise-BLEU 2.6, captured 0.31 (0:04)"
    )


def test_the_display_has_a_bar_a_share_and_a_reply_of_each_decoder():
    view = opened(100)
    for step in range(1, 21):
        view.meter.add(record(step, (0.2, 0.8)))
    view.meter.validation = checked(responses=("sure \x1b[2J [red]", "x" * 300))
    text = drawn(view)
    lines = [line.rstrip() for line in text.splitlines()]
    assert "\x1b" not in text and max(map(len, lines)) <= 100
    assert "step 20/100" in text and "20 %" in text and "Are you in?" in text
    short, long = next(line for line in lines if "20.0 %" in line), next(line for line in lines if "80.0 %" in line)
    assert short.startswith(" 0 ███▎") and short.endswith("sure  [2J [red]")  # a full bar is twice an equal share
    assert long.startswith(" 1 " + "█" * 12 + "▊ ") and long.endswith("…")


def test_stage_1_and_the_time_before_the_first_step_have_no_decoders():
    view = opened(100, 1, "mle")
    assert "step 0/100" in drawn(view) and "–:–– left" in drawn(view)
    view.meter.add(record(1, (), e_seconds=0.0, assign_seconds=0.0, max_posterior=None))
    assert "time:" not in drawn(view) and "█" not in drawn(view) and "posterior" not in plain_line(view.meter)


def test_many_decoders_share_a_line():
    view = opened(100, 64)
    view.meter.add(record(1, [1 / 64] * 63 + [2 / 64]))
    (line,) = [line for line in drawn(view).splitlines() if line.startswith("usage")]
    assert line.split()[1] == "▅" * 63 + "█"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("decoders", [2, 30])
def test_numbers_that_are_not_finite_are_shown_not_fatal(bad, decoders):
    console = terminal()
    view = opened(10, decoders, console=console, output="live")
    seconds = {"e_seconds": bad, "assign_seconds": bad, "m_seconds": bad, "max_posterior": bad}
    view.on_step(record(10, [bad] * decoders, loss=bad, **seconds))
    view.on_validation(ValidationRecord(10, bad, {"bleu2_f": bad}, [], bad))
    view.on_end()
    assert f"loss {bad:.3f}" in console.file.getvalue() and f"loss {bad:.3f}" in plain_line(view.meter)


def test_steps_without_time_or_total_do_not_divide_by_zero():
    view = opened(0)
    view.meter.add(record(1, e_seconds=0.0, assign_seconds=0.0, m_seconds=0.0))
    assert "step 1/0" in plain_line(view.meter) and "step 1/0" in drawn(view)


def test_a_terminal_is_redrawn_and_messages_stay_above():
    console = terminal()
    view = opened(console=console)
    for step in range(1, 11):
        view.on_step(record(step))
    view.on_message("look out [0.1] \x1b[2J")
    view.on_end()
    text = console.file.getvalue()
    assert "\x1b[" in text and "step 10/10" in text and "look out [0.1]  [2J" in text
    assert text.rindex("look out") < text.rindex("step 10/10")


def test_the_display_goes_to_standard_error(capfd):
    opened(1).on_step(record(1))
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("step 1/1 (100 %)")
