"""The engine: one thread that owns the model, and requests from the event loop's thread.

Requests wait in one queue, first come, first served. Before a step the thread lets waiting jobs join the running
batch, as many as there is room for; a few beside many wait up to four steps for others to be read with. Ways to decode
that are not continuous (beam search, sampling of the single-decoder model, MBR) run between two steps, one at a time,
because a model routes one batch at a time.

A request ends by its last token, by a failure, at its time limit, or because its client went away.
"""

import asyncio
import copy
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyreply.decoding.continuous import Continuous, Job
from polyreply.errors import PolyReplyError
from polyreply.reply import PolyReply
from polyreply.serve.metrics import Metrics
from polyreply.serve.reply_text import ReplyText
from polyreply.serve.settings import ServeSettings
from polyreply.web.logs import log

Work = Callable[[PolyReply], Any]
_PATIENCE = 1.0
"""Seconds between looks at the time limits of requests while nothing can be done for them."""
_GROUP, _MOST_WAITED = 1 / 8, 4
"""Newcomers fewer than this share of what runs wait for others to read their contexts with, so many steps at most."""


class QueueFullError(Exception):
    """There is no room for a request; `seconds` is when there may be."""

    def __init__(self, seconds: float) -> None:
        super().__init__("the queue is full")
        self.seconds = seconds


class TimeLimitError(Exception):
    """A request took too long."""


class StoppedError(Exception):
    """The engine does not run."""


@dataclass
class Update:
    """What a reply of a request has gained."""

    context: int
    reply: ReplyText
    text: str
    num_tokens: int
    """Tokens of the reply so far."""


@dataclass(eq=False)
class Ask:
    """One request: jobs that are decoded continuously, or other work with the model, a piece for each context."""

    jobs: Sequence[Job] = ()
    stops: Sequence[str] = ()
    is_live: bool = False
    """Whether updates are wanted while replies grow; otherwise there are none."""
    works: Sequence[Work] = ()
    texts: list[list[ReplyText]] = field(default_factory=list)
    """For each job its replies."""
    results: list[Any] = field(default_factory=list)
    """What the `works` returned."""
    deadline: float = 0.0
    loop: asyncio.AbstractEventLoop | None = None
    updates: "asyncio.Queue[list[Update] | Exception | None]" = field(default_factory=asyncio.Queue)
    """None is the end."""
    is_over: bool = False

    @property
    def size(self) -> int:
        """The places that it takes in the queue."""
        return len(self.jobs) + len(self.works)

    def post(self, item: "list[Update] | Exception | None") -> None:
        """Hand something to the event loop; after the end nothing is."""
        if self.is_over or self.loop is None:
            return
        self.is_over = not isinstance(item, list)
        try:
            self.loop.call_soon_threadsafe(self.updates.put_nowait, item)
        except RuntimeError:  # the loop has been closed: nobody waits any more
            self.is_over = True


class Engine:
    """A model that works on many requests at once."""

    def __init__(self, polyreply: PolyReply, settings: ServeSettings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self._tokenizer = copy.deepcopy(polyreply.tokenizer)  # fast tokenizers must not be shared by threads
        self._polyreply = PolyReply(polyreply.model, self._tokenizer)
        self._continuous = Continuous(polyreply.model)
        self._waiting: deque[tuple[Ask, int]] = deque()
        """Requests, each with the number of a job, in the order of their arrival."""
        self._running: dict[int, tuple[Ask, int]] = {}
        """By the identity of a job."""
        self._steps_waited = 0
        """The steps for which newcomers have waited for others."""
        self._wake, self._is_closed = threading.Condition(), False
        self._recent: deque[float] = deque(maxlen=64)
        """When the last contexts were finished."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether requests are worked on."""
        return self._thread.is_alive()

    @property
    def has_room(self) -> bool:
        """Whether another request would be taken."""
        return len(self._waiting) < self.settings.max_queue

    def close(self) -> None:
        """Stop the thread; requests that are not finished fail."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, ask: Ask) -> None:
        """Put a request into the queue, from the thread of the event loop."""
        ask.loop, ask.deadline = asyncio.get_running_loop(), time.monotonic() + self.settings.seconds
        ask.texts = [
            [ReplyText(row, self._tokenizer, ask.stops, is_live=ask.is_live) for row in job.rows] for job in ask.jobs
        ]
        with self._wake:
            if self._is_closed or not self._thread.is_alive():
                raise StoppedError
            if len(self._waiting) + ask.size > self.settings.max_queue:
                raise QueueFullError(self._seconds_to_wait())
            self._waiting.extend((ask, place) for place in range(ask.size))
            self.metrics.queue_length.set(len(self._waiting))
            self._wake.notify()

    def cancel(self, ask: Ask) -> None:
        """Drop a request whose client went away; its rows leave the batch before the next step."""
        if not ask.is_over:
            self.metrics.dropped.inc()
        self._end(ask)
        with self._wake:
            self._wake.notify()

    async def updates(self, ask: Ask) -> AsyncGenerator[list[Update]]:
        """What the replies of a submitted request gain, step by step; it is dropped if the reader stops reading."""
        try:
            while True:
                item = await ask.updates.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    return
                yield item
        finally:
            self.cancel(ask)

    def _seconds_to_wait(self) -> float:
        """About how long it takes until the queue is half as long."""
        if len(self._recent) < 2 or self._recent[-1] == self._recent[0]:
            return 1.0
        per_context = (self._recent[-1] - self._recent[0]) / (len(self._recent) - 1)
        return min(60.0, len(self._waiting) / 2 * per_context)

    # The rest runs in the engine's thread.

    def _run(self) -> None:
        while True:
            with self._wake:
                if not (self._waiting or self._running or self._is_closed):
                    self._wake.wait(_PATIENCE)
                if self._is_closed:
                    break
                admitted, with_work = self._admit()
            try:
                self._step(admitted, with_work)
            except Exception as error:  # the batch is lost, the server is not
                log("engine failed", level=logging.ERROR, exception=error)
                self._fail_running(error)
        self._fail_running(StoppedError())
        for ask, _ in self._waiting:
            ask.post(StoppedError())

    def _admit(self) -> tuple[list[Job], Ask | None]:
        """Take jobs from the front of the queue while there is room, up to the first work of another kind."""
        admitted: list[Job] = []
        with_work: Ask | None = None
        few = 0 < len(self._waiting) < _GROUP * len(self._running)
        if few and self._waiting[0][0].jobs and self._steps_waited < _MOST_WAITED:
            self._steps_waited += 1
            return admitted, with_work
        self._steps_waited = 0
        while self._waiting and with_work is None:
            ask, place = self._waiting[0]
            if not ask.is_over and ask.jobs and len(self._running) >= self.settings.max_batch:
                break
            self._waiting.popleft()
            if ask.is_over:
                continue
            if ask.jobs:
                admitted.append(ask.jobs[place])
                self._running[id(ask.jobs[place])] = (ask, place)
            else:
                with_work = ask
        self.metrics.queue_length.set(len(self._waiting))
        return admitted, with_work

    def _step(self, admitted: list[Job], with_work: Ask | None) -> None:
        self._end_late()
        if with_work is not None and not with_work.is_over:
            self._do(with_work)
        self._continuous.add([job for job in admitted if not job.is_done])
        rows = self._continuous.advance()
        if rows:
            self.metrics.batch_rows.observe(len(rows))
            self.metrics.batch_contexts.observe(len({id(row.job) for row in rows}))
            self.metrics.generated_tokens.inc(len(rows))
        self._deliver()
        self.metrics.running.set(len(self._running))

    def _do(self, ask: Ask) -> None:
        """The next piece of a request's work."""
        try:
            ask.results.append(ask.works[len(ask.results)](self._polyreply))
        except Exception as error:
            if not isinstance(error, PolyReplyError):
                log("engine failed", level=logging.ERROR, exception=error)
            ask.post(error)
        else:
            self._recent.append(time.monotonic())
            if len(ask.results) == len(ask.works):
                ask.post(None)

    def _deliver(self) -> None:
        """Hand out what the rows have gained; finished jobs leave."""
        gained: dict[int, tuple[Ask, list[Update]]] = {}
        for key, (ask, place) in list(self._running.items()):
            updates = gained.setdefault(id(ask), (ask, []))[1]
            for reply in ask.texts[place]:
                was_done = reply.is_done
                text = reply.grow()
                if text or reply.is_done != was_done:
                    updates.append(Update(place, reply, text, len(reply.row.tokens)))
            if ask.jobs[place].is_done:
                del self._running[key]
                self._recent.append(time.monotonic())
        for ask, updates in gained.values():
            if updates and ask.is_live:
                ask.post(updates)
            if all(job.is_done for job in ask.jobs):
                ask.post(None)

    def _end(self, ask: Ask, error: Exception | None = None) -> None:
        ask.post(error)
        for job in ask.jobs:
            job.end()

    def _end_late(self) -> None:
        now = time.monotonic()
        with self._wake:
            asks = {id(ask): ask for ask, _ in (*self._waiting, *self._running.values())}
        for ask in asks.values():
            if now > ask.deadline and not ask.is_over:
                self._end(ask, TimeLimitError())

    def _fail_running(self, error: Exception) -> None:
        for ask in {id(ask): ask for ask, _ in self._running.values()}.values():
            self._end(ask, error)
        self._running.clear()
        self._continuous = Continuous(self._polyreply.model)
