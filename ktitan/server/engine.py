"""The one stream: a thread of its own for the model, and the queue in front of it."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ktitan.api import PromptCache
from ktitan.server.errors import ApiError, as_api_error
from ktitan.server.events import Failed
from ktitan.server.job import Job, gone
from ktitan.server.metrics import Metrics
from ktitan.server.queue import FairQueue
from ktitan.server.runner import run_job

__all__ = ["Engine"]


class Engine:
    """Runs one job at a time; all methods belong to the event loop, the model to the engine's thread.

    Args:
        model: causal language model of transformers, stock or injected.
        tokenizer: its tokenizer.
        queue_limit: jobs that may wait.
        chunk_tokens: tokens of a prompt in one forward pass.
        metrics: where jobs are counted.
        prompt_cache: keeps what was read for prompts that begin alike; None: every prompt is read from its start.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        queue_limit: int,
        chunk_tokens: int | None,
        metrics: Metrics,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        self.running: Job | None = None
        self.last_stats: Any = None
        self.queue: FairQueue[Job] = FairQueue(queue_limit)
        self.is_draining = False
        self._model = model
        self._tokenizer = tokenizer
        self._chunk_tokens = chunk_tokens
        self._metrics = metrics
        self.prompt_cache = prompt_cache
        self._mean_seconds = 1.0
        # The executor keeps whatever a job raises for us to look at, so no fault can end the thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ktitan-model")
        self._dispatcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take jobs."""
        self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch())

    @property
    def is_serving(self) -> bool:
        """Whether jobs are taken and run."""
        return not self.is_draining and self._dispatcher is not None and not self._dispatcher.done()

    def submit(self, job: Job) -> None:
        """Let `job` wait for its turn.

        Raises:
            ApiError: 429 when the queue is full, 503 when the server is about to stop.
        """
        if not self.is_serving:
            raise _stopping()
        if len(self.queue) >= self.queue.limit + (self.running is None):
            seconds = math.ceil(min(max(self._mean_seconds * (len(self.queue) + 1), 1), 120))
            message = f"{len(self.queue)} requests are waiting already; try again in {seconds} s"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": str(seconds)})
        self.queue.put(job.client, job)

    def cancel(self, job: Job) -> None:
        """Nobody wants the rest of `job`: it leaves the queue now, or the model after the step that runs."""
        self.queue.remove(job.client, job)
        job.end(Failed(gone()))

    def leave(self, job: Job) -> None:
        """The reader of `job` is done with it, whether it is complete or not."""
        if not job.is_read:
            self.cancel(job)

    def ahead(self, job: Job) -> int:
        """How many jobs come before `job`, the one that runs included."""
        return self.queue.ahead(job.client, job) + (self.running is not None)

    def drain(self, seconds: float) -> None:
        """Take nothing new, refuse what waits, and give the job that runs so many seconds."""
        self.is_draining = True
        for job in self.queue.drain():
            job.end(Failed(_stopping()))
        asyncio.get_running_loop().call_later(seconds, self._end_running)

    async def close(self, seconds: float) -> bool:
        """End all work; whether the model's thread came to rest within `seconds`."""
        self.drain(0)
        self._end_running()
        deadline = time.monotonic() + seconds
        while self.running is not None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if self._dispatcher is not None:
            self._dispatcher.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        return self.running is None

    def _end_running(self) -> None:
        if self.running is not None and not self.running.stop_asked.is_set():
            self.running.end(Failed(_stopping()))

    async def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            job = await self.queue.get()
            if job.stop_asked.is_set():
                continue
            self.running, job.started_at = job, time.monotonic()
            work = loop.run_in_executor(self._thread, self._run, job)
            await asyncio.wait([work])
            self._finish(job, work.exception())

    def _run(self, job: Job) -> None:
        run_job(self._model, self._tokenizer, job, self._chunk_tokens, self.prompt_cache)

    def _finish(self, job: Job, error: BaseException | None) -> None:
        if error is not None:
            job.end(Failed(as_api_error(error)))
        self.running, self.last_stats = None, job.stats
        started = job.started_at or job.queued_at
        seconds = time.monotonic() - started
        self._mean_seconds += (seconds - self._mean_seconds) / 8
        self._metrics.count_job(job, started - job.queued_at, seconds, failed=error is not None)


def _stopping() -> ApiError:
    return ApiError(503, "the server is stopping", code="stopping", headers={"Retry-After": "30"})
