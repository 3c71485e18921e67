"""The live view of a training run: how far, how well, how fast, and what each decoder gets and says.

On a terminal it is a display that redraws itself; elsewhere (a log file, a batch system) a plain line every few
seconds; in a library, nothing (`SilentView`). All of it goes to standard error. Legend: K decoders.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from polyreply.training.record import Meter, StepRecord, ValidationRecord

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

Output = Literal["auto", "live", "plain"]

_REDRAW_SECONDS = 0.2
_MOST_ROWS = 24
"""More decoders than this share one line of small bars."""
_BAR_WIDTH = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_SHOWN = {
    "bleu1_f": ("BLEU1-F", 1),
    "bleu2_f": ("BLEU2-F", 1),
    "dist2": ("Dist-2", 1),
    "pairwise_bleu": ("Pairwise-BLEU", 1),
    "identical": ("identical %", 1),
    "captured": ("captured", 2),
}
"""Numbers of a validation by their names in its record: their name on the screen, and decimals."""


class View(Protocol):
    """Who is told of a run."""

    def update(self, record: StepRecord) -> None:
        """A step was done."""

    def validation(self, record: ValidationRecord) -> None:
        """A validation was done."""

    def message(self, text: str) -> None:
        """Something a person should read, such as an alarm."""


class SilentView:
    """Shows nothing, for use as a library."""

    def update(self, record: StepRecord) -> None:
        """Tells nobody."""

    def validation(self, record: ValidationRecord) -> None:
        """Tells nobody."""

    def message(self, text: str) -> None:
        """Tells nobody."""


class TrainingView:
    """Shows a run while it goes on: `with TrainingView(1000, 10, "eqhard-em") as view: view.update(record)`."""

    def __init__(
        self,
        total_steps: int,
        num_decoders: int,
        title: str = "training",
        *,
        output: Output = "auto",
        plain_seconds: float = 10.0,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console

        self.num_decoders = num_decoders
        self.title = title
        self.meter = Meter(total_steps, clock)
        self._output, self._console = output, console or Console(stderr=True)
        self._pause = plain_seconds
        self._clock = clock
        self._shown_at = -math.inf
        self._live: Live | None = None

    def __enter__(self) -> "TrainingView":
        from rich.live import Live

        able = self._console.is_terminal and not self._console.is_dumb_terminal
        if self._output == "live" or (self._output == "auto" and able):
            # No thread redraws it: a step that is being counted cannot be half on the screen.
            self._live = Live(self._picture(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
            self._pause = _REDRAW_SECONDS
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()
            self._live = None

    def update(self, record: StepRecord) -> None:
        """Shows a step, if enough time has passed since the last that was shown."""
        self.meter.add(record)
        now = self._clock()
        if now - self._shown_at >= self._pause or record.step >= self.meter.total_steps:
            self._shown_at = now
            self._show(plain_line(self.meter))

    def validation(self, record: ValidationRecord) -> None:
        """Shows what a validation found."""
        self.meter.checked = record
        self._show(validation_line(record))

    def message(self, text: str) -> None:
        """Writes a line that stays, above the display."""
        if self._live:
            from rich.text import Text

            self._live.console.print(Text("\n".join(map(_printable, text.splitlines()))))
            return
        for line in text.splitlines():
            self._write(line)

    def _show(self, line: str) -> None:
        if self._live:
            self._live.update(self._picture(), refresh=True)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        """One line without colours or control characters, at once."""
        self._console.file.write(_printable(line) + "\n")
        self._console.file.flush()

    def _picture(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [Text(_printable(self.title), style="bold"), _progress(self.meter)]
        parts += [Text("  ".join(_facts(self.meter)))] if self.meter.last else []
        if self.meter.checked:
            parts.append(Text(validation_line(self.meter.checked), style="cyan"))
        usage_K = self.meter.usage_K
        if usage_K and self.num_decoders <= _MOST_ROWS:
            parts.append(_decoder_table(usage_K, self.meter.checked.replies if self.meter.checked else ()))
        elif usage_K:
            parts.append(Text("usage " + _small_bars(usage_K) + f"  {_usage_range(usage_K)}"))
        return Group(*parts)


def plain_line(meter: Meter) -> str:
    """One line for where there is no terminal: "step 120/1000 (12 %) | loss 3.214 | … | 5:12 left"."""
    left = f"{_duration(meter.remaining)} left" if meter.step < meter.total_steps else _duration(meter.elapsed)
    done = f"step {meter.step}/{meter.total_steps} ({_percent(_share(meter))})"
    usage_K = meter.usage_K
    return " | ".join([done, *_facts(meter), *([f"usage {_usage_range(usage_K)}"] if usage_K else []), left])


def validation_line(record: ValidationRecord) -> str:
    """One line with the numbers that tell quality and diversity."""
    known = [(record.metrics.get(name), *shown) for name, shown in _SHOWN.items()]
    numbers = [f"{name} {_number(value, decimals)}" for value, name, decimals in known if value is not None]
    found = ", ".join([f"NLL {_number(record.nll, 3)}", *numbers])
    return f"validation at step {record.step}: {found} ({_duration(record.seconds)})"


def _facts(meter: Meter) -> Iterator[str]:
    last = meter.last
    if last is None:
        return
    yield f"epoch {last.epoch}"
    yield f"loss {_number(meter.loss, 3)}"
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
        f"{_duration(meter.elapsed)} gone, {_duration(meter.remaining)} left",
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
    """Red for a decoder that hardly trains; `alarms` warns at the same point."""
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
    return f"{value:.{decimals}f}"  # "nan" is a word, too


def _percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %" if math.isfinite(share) else "– %"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–:––"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _printable(text: str) -> str:
    """Without what could move the cursor: a model's reply may hold anything."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
