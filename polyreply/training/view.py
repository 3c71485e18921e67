"""The live view of a training run: progress, quality, speed, and what each decoder gets and says.

On a terminal the display redraws itself; in a notebook one output cell is updated; elsewhere (a log file, a batch
system) a plain line is written every few seconds. Terminal output goes to standard error. Legend: K decoders.
"""

import io
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from polyreply.em.em_step import StepRecord
from polyreply.metrics.registry import label
from polyreply.training.callbacks import Callback
from polyreply.training.recipe import TrainRecipe
from polyreply.training.validation import ValidationRecord

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

Output = Literal["auto", "live", "notebook", "plain"]

_RECENT = 50
"""Steps over which loss, speed and usage are averaged."""
_REDRAW_SECONDS = 0.2
_MOST_ROWS = 24
"""More decoders than this share one line of small bars."""
_BAR_WIDTH = 16
_NOTEBOOK_WIDTH = 110
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_SHOWN = {"bleu1_f": 1, "bleu2_f": 1, "dist2": 1, "pairwise_bleu": 1, "identical": 1, "captured": 2}
"""Scores of a validation by their names in its record, and their decimals on the screen."""


class Meter:
    """The progress of a run, each number averaged over its last steps; NaN where there is none yet."""

    def __init__(self, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_steps = total_steps
        self._clock = clock
        self._start = clock()
        self._from: tuple[int, float] | None = None
        self._recent: deque[StepRecord] = deque(maxlen=_RECENT)
        self.last: StepRecord | None = None
        self.validation: ValidationRecord | None = None

    def add(self, record: StepRecord) -> None:
        """Add a step."""
        if self._from is None:  # the pace counts neither loading nor the steps of an earlier run
            self._from = record.step - 1, self._clock() - record.seconds
        self._recent.append(record)
        self.last = record

    @property
    def step(self) -> int:
        """The step the run is at."""
        return self.last.step if self.last else 0

    @property
    def elapsed(self) -> float:
        """Seconds since the view was made."""
        return self._clock() - self._start

    @property
    def remaining(self) -> float:
        """Seconds to the last step, at the pace so far, validations included."""
        if self._from is None or self.step <= self._from[0]:
            return math.nan
        pace = (self._clock() - self._from[1]) / (self.step - self._from[0])
        return pace * max(0, self.total_steps - self.step)

    @property
    def loss(self) -> float:
        """Mean over the last steps."""
        return _mean([record.loss for record in self._recent])

    @property
    def samples_per_second(self) -> float:
        """Over the last steps, reading data not counted."""
        seconds = sum(record.seconds for record in self._recent)
        return sum(record.samples for record in self._recent) / seconds if seconds > 0 else math.nan

    @property
    def time_shares(self) -> tuple[float, float, float]:
        """Of E-step, assignment and M-step."""
        parts = [(record.e_seconds, record.assign_seconds, record.m_seconds) for record in self._recent]
        e, assign, m = (sum(column) for column in zip(*parts, strict=True)) if parts else (0.0, 0.0, 0.0)
        total = e + assign + m
        return (e / total, assign / total, m / total) if total > 0 else (math.nan, math.nan, math.nan)

    @property
    def usage_K(self) -> list[float]:
        """Mean share of each decoder; empty in stage 1."""
        shares = [record.usage_K for record in self._recent if record.usage_K]
        return [_mean(column) for column in zip(*shares, strict=True)]

    @property
    def max_posterior(self) -> float:
        """Mean over the last steps of the largest posterior."""
        return _mean([record.max_posterior for record in self._recent if record.max_posterior is not None])


class TrainingView(Callback):
    """Shows a run while it trains: `train(recipe, callbacks=[TrainingView()])`."""

    def __init__(
        self,
        title: str = "",
        *,
        output: Output = "auto",
        plain_seconds: float = 10.0,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`output` auto chooses by where it runs; `plain_seconds` is the time between plain lines."""
        from rich.console import Console

        self._given_title, self.title, self.num_decoders = title, title, 0
        self.meter = Meter(0, clock)
        self._output, self._console = output, console or Console(stderr=True)
        self._pause, self._clock = plain_seconds, clock
        self._shown_at = -math.inf
        self._live: Live | None = None
        self._cell: Any = None
        """The output cell of a notebook."""

    def on_start(self, recipe: TrainRecipe) -> None:
        """Open the display."""
        data = recipe.data.rstrip("/").rpartition("/")[2]
        self.title = self._given_title or f"{recipe.method} on {data}, seed {recipe.seed}"
        self.num_decoders = 0 if recipe.has_one_decoder else recipe.num_decoders
        self.meter = Meter(recipe.steps, self._clock)
        able = self._console.is_terminal and not self._console.is_dumb_terminal
        if self._output == "notebook" or (self._output == "auto" and in_notebook()):
            from IPython.display import display

            self._cell = display(self._html(), display_id=True)
            self._pause = _REDRAW_SECONDS
        elif self._output == "live" or (self._output == "auto" and able):
            from rich.live import Live

            # No thread redraws it, so a step that is being counted is never half on the screen.
            self._live = Live(self._picture(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
            self._pause = _REDRAW_SECONDS

    def on_end(self) -> None:
        """Show the last state and close the display."""
        if self._live:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()
            self._live = None
        if self._cell is not None:
            self._cell.update(self._html())
            self._cell = None

    def on_step(self, record: StepRecord) -> None:
        """Show a step, if enough time has passed since the last one shown."""
        self.meter.add(record)
        now = self._clock()
        if now - self._shown_at >= self._pause or record.step >= self.meter.total_steps:
            self._shown_at = now
            self._show(plain_line(self.meter))

    def on_validation(self, record: ValidationRecord) -> None:
        """Show what a validation measured."""
        self.meter.validation = record
        self._show(validation_line(record))

    def on_message(self, text: str) -> None:
        """Write a line that stays, above the display."""
        if self._live:
            from rich.text import Text

            self._live.console.print(Text("\n".join(map(_printable, text.splitlines()))))
            return
        for line in text.splitlines():
            self._write(line)

    def _show(self, line: str) -> None:
        if self._live:
            self._live.update(self._picture(), refresh=True)
        elif self._cell is not None:
            self._cell.update(self._html())
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        """Write one line at once, without colours or control characters."""
        self._console.file.write(_printable(line) + "\n")
        self._console.file.flush()

    def _html(self) -> Any:
        """The display as an HTML object of IPython; rich escapes all text."""
        from IPython.display import HTML
        from rich.console import Console

        console = Console(record=True, file=io.StringIO(), width=_NOTEBOOK_WIDTH, force_jupyter=False)
        console.print(self._picture())
        return HTML(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))

    def _picture(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [Text(_printable(self.title), style="bold"), _progress(self.meter)]
        parts += [Text("  ".join(_facts(self.meter)))] if self.meter.last else []
        if self.meter.validation:
            parts.append(Text(validation_line(self.meter.validation), style="cyan"))
        usage_K = self.meter.usage_K
        if usage_K and self.num_decoders <= _MOST_ROWS:
            parts.append(_decoder_table(usage_K, self.meter.validation.replies if self.meter.validation else ()))
        elif usage_K:
            parts.append(Text("usage " + _small_bars(usage_K) + f"  {_usage_range(usage_K)}"))
        return Group(*parts)


def default_view() -> Callback:
    """A live view on a terminal or in a notebook; elsewhere nothing is shown."""
    return TrainingView() if in_notebook() or sys.stderr.isatty() else Callback()


def in_notebook() -> bool:
    """Whether this process is the kernel of a Jupyter notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


def plain_line(meter: Meter) -> str:
    """One line for where there is no terminal: "step 120/1000 (12 %) | loss 3.214 | … | 5:12 left"."""
    left = f"{_duration(meter.remaining)} left" if meter.step < meter.total_steps else _duration(meter.elapsed)
    done = f"step {meter.step}/{meter.total_steps} ({_percent(_share(meter))})"
    usage_K = meter.usage_K
    return " | ".join([done, *_facts(meter), *([f"usage {_usage_range(usage_K)}"] if usage_K else []), left])


def validation_line(record: ValidationRecord) -> str:
    """One line with the numbers for quality and diversity."""
    known = [(record.metrics.get(name), label(name), decimals) for name, decimals in _SHOWN.items()]
    numbers = [f"{name} {_number(value, decimals)}" for value, name, decimals in known if value is not None]
    found = ", ".join([f"NLL {_number(record.nll, 3)}", *numbers])
    return f"validation at step {record.step}: {found} ({_duration(record.seconds)})"


def _facts(meter: Meter) -> Iterator[str]:
    last = meter.last
    if last is None:
        return
    yield f"epoch {last.epoch}"
    yield f"loss {_number(meter.loss, 3)}"
    yield from (f"{name} {value:.3g}" for name, value in last.losses.items())
    yield f"lr {last.learning_rate:.1e}"
    yield f"{_number(meter.samples_per_second, 0)} samples/s"
    if last.usage_K:
        e, assign, m = meter.time_shares
        yield f"time: E {_percent(e)}, assign {_percent(assign, 1)}, M {_percent(m)}"
    if last.max_posterior is not None:
        yield f"max posterior {_number(meter.max_posterior, 2)}"


def _progress(meter: Meter) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    row = Table.grid(padding=(0, 2))
    row.add_row(
        ProgressBar(total=max(meter.total_steps, 1), completed=meter.step, width=40),
        f"step {meter.step}/{meter.total_steps}",
        _percent(_share(meter)),
        f"{_duration(meter.elapsed)} elapsed, {_duration(meter.remaining)} left",
    )
    return row


def _decoder_table(usage_K: Sequence[float], replies: Sequence[dict[str, Any]]) -> "Table":
    """A row per decoder: its bar, its share, and its reply to the first validation context."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1), expand=bool(replies))
    table.add_column(justify="right", width=2, no_wrap=True)
    table.add_column(width=_BAR_WIDTH, no_wrap=True)
    table.add_column(justify="right", width=7, no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    responses: Sequence[str] = ()
    if replies:
        context, responses = replies[0]["context"], replies[0]["responses"]
        last_turn = context if isinstance(context, str) else context[-1] if context else ""
        table.add_row("", "", "", Text(f" {_printable(last_turn)}", style="italic"))
    full = max(2 / len(usage_K), *map(_finite, usage_K))
    for k, share in enumerate(usage_K):
        bar = Text(_bar(share / full), style=_bar_style(share * len(usage_K)))
        reply = Text(f" {_printable(responses[k])}") if k < len(responses) else ""
        table.add_row(str(k), bar, f"{_number(100 * share, 1)} %", reply)
    return table


def _bar(part: float) -> str:
    eighths = round(8 * _BAR_WIDTH * min(1.0, max(0.0, _finite(part))))
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(_BAR_WIDTH)


def _bar_style(of_equal: float) -> str:
    """Red for a decoder that hardly trains; `alarms` warns at the same threshold."""
    return "red" if of_equal < 0.1 else "yellow" if of_equal < 0.5 else "green"


def _small_bars(usage_K: Sequence[float]) -> str:
    full = max(2 / len(usage_K), *map(_finite, usage_K))
    return "".join(_HEIGHTS[min(7, int(8 * _finite(share) / full))] for share in usage_K)


def _usage_range(usage_K: Sequence[float]) -> str:
    known = [_finite(share) for share in usage_K]
    return f"{100 * min(known):.1f} to {100 * max(known):.1f} %"


def _share(meter: Meter) -> float:
    return min(1.0, meter.step / meter.total_steps) if meter.total_steps > 0 else math.nan


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}"  # NaN prints as "nan"


def _percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %" if math.isfinite(share) else "– %"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–:––"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _printable(text: str) -> str:
    """Text without control characters: a model's reply may contain anything."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
