"""The engine without its thread: one `turn` is one step of the model and all that goes with it.

    look after clients -> deadlines -> admit -> plan -> decode -> sample -> emit

Nothing here knows the time but what `clock` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from ..errors import BackendError, Cancelled, DeadlineExceeded, EngineFailure
from .clients import Clients
from .job import Job, TokenInfo
from .metrics import Metrics
from .pace import Pace
from .prompt_cache import CacheLimits, PromptCache
from .roster import Roster
from .runner import Choice, NoRoom, Runner
from .scheduler import Step, plan_step
from .sequence import Answer, State
from .ticket import Ticket


@dataclass(frozen=True)
class EngineLimits:
    """`queue_size`: jobs that may wait beside those that get a slot at once.

    `max_added_latency_ms`: how much later a prefill may make the next token of running answers, 0: computed from the
    time that a token takes anyway.
    """

    queue_size: int
    cache: CacheLimits
    max_added_latency_ms: float = 0


class Core:
    """All jobs under way. Belongs to one thread."""

    def __init__(
        self,
        runner: Runner,
        limits: EngineLimits,
        metrics: Metrics,
        clock: Callable[[], float],
        log_error: Callable[[str], None],
    ) -> None:
        """Raises ValueError when the slots could not all decode in one step."""
        if runner.n_slots > runner.n_batch:
            raise ValueError(f"n_batch is {runner.n_batch}; allowed is n_parallel ({runner.n_slots}) or more")
        self._runner = runner
        self._metrics = metrics
        self._clock = clock
        self._log_error = log_error
        self._cache = PromptCache(runner, limits.cache, log_error)
        self._pace = Pace(limits.max_added_latency_ms)
        self._n_ctx = min(runner.n_ctx, runner.n_cells)
        self._numbers = count()
        self._burst = -1  # number of the last answer of a burst; see _is_burst
        self._clients = Clients(log_error)
        self._roster = Roster(runner, self._cache)
        self.n_unstarted = 0  # jobs of which no answer has had a slot

    @property
    def is_busy(self) -> bool:
        """Whether there is any job."""
        return len(self._clients) > 0

    @property
    def cache(self) -> PromptCache:
        """For its figures."""
        return self._cache

    @property
    def n_free(self) -> int:
        """Slots without an answer."""
        return self._roster.n_free

    @property
    def n_running(self) -> int:
        """Answers with a slot."""
        return len(self._roster.running)

    @property
    def n_waiting(self) -> int:
        """Answers without one."""
        return len(self._roster.waiting)

    def accept(self, job: Job, arrived_at: float) -> None:
        """Take a job on."""
        ticket = Ticket(job, arrived_at)
        self._clients.add(ticket)
        self.n_unstarted += 1
        self._roster.add(ticket.make_answers(self._numbers, self._n_ctx))
        self._metrics.asked_n.observe(job.sampling.n)

    def turn(self) -> None:
        """Look after the jobs, then make one step for those that have a slot."""
        now = self._clock()
        clients = self._clients
        if now >= clients.next_look:
            for ticket, error in clients.look(now):
                self._fail(ticket, error)
        if now >= clients.next_deadline:
            for ticket in clients.overdue(now):
                self._end_at_deadline(ticket, now)
        roster = self._roster
        if roster.waiting:
            self._admit(now)
        if roster.followers:
            roster.settle_followers()
        if roster.running:
            self._step()

    def abandon(self, error: BackendError) -> None:
        """Fail every job and empty every slot, whatever state they are in: after an error that nothing else caught."""
        self._roster.clear()
        for ticket in self._clients.every():
            for answer in ticket.answers:
                answer.slot = None  # also of one that was just about to run
            try:
                self._fail(ticket, error)
            except Exception as failure:  # a job that stayed would keep the thread busy, and `close` waiting, for ever
                self._log_error(f"a job could not be cleared away: {failure!r}")
                if not ticket.is_over:
                    self._clients.fail(ticket, error)
        self.n_unstarted = 0
        self._cache.clear()

    # -- the step --------------------------------------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        while (answer := self._roster.next()) is not None:
            ticket = answer.ticket
            if answer.sampler is None:
                try:
                    answer.sampler = self._runner.sampler(answer.sampling, ticket.job.prompt)
                except Exception as error:
                    self._fail(ticket, _as_backend_error(error))
                    continue
            self._roster.seat(answer)
            if answer.admitted_at is None:
                answer.admitted_at = now
            if not ticket.is_started:
                ticket.is_started = True
                self.n_unstarted -= 1

    def _preempt(self) -> None:
        self._roster.preempt_newest()
        self._metrics.preemptions.value += 1

    def _step(self) -> None:
        while self._roster.is_overdrawn():
            self._preempt()
        running = self._roster.running
        n_decode = sum(1 for answer in running if answer.state is State.DECODE)
        is_burst = self._is_burst(running, n_decode)
        budget = self._runner.n_batch if is_burst else self._pace.budget(n_decode) if n_decode < len(running) else 0
        step = plan_step(running, self._runner.n_batch, n_decode, budget)
        n_tokens = step.n_decode + step.n_prefill
        if self._roster.is_pool_shared:
            while self._cache.n_held + n_tokens > self._runner.n_cells and self._cache.drop_idle():
                pass
        began = self._clock()
        try:
            self._runner.decode(step.chunks)
        except NoRoom:
            self._relieve(step)
            return
        except Exception as error:
            self._recover(step, error)
            return
        now = self._clock()
        if not (is_burst and step.n_decode):
            self._pace.measured(step.n_decode, step.n_prefill, now - began)
        self._metrics.step_tokens.observe(n_tokens)
        for answer, chunk in zip(step.answers, step.chunks, strict=True):
            answer.fed += len(chunk.tokens)  # of all, before anything can make one of them leave its slot
        for answer, chunk in zip(step.answers, step.chunks, strict=True):
            if chunk.wants_logits:
                self._go_on(answer, now)
            elif answer.fed in answer.marks and answer.slot is not None:
                self._cache.checkpoint(answer)

    def _is_burst(self, running: Sequence[Answer], n_decode: int) -> bool:
        """Whether prompts are to be read in whole batches although answers decode.

        Where prompts come together and outnumber the running answers, to spare these few their pause would cost all
        the others a longer wait. It holds until the last prompt of the burst is read; who comes later is no part of it.
        """
        filling = [answer.number for answer in running if answer.state is State.PREFILL]
        if len(filling) > n_decode:
            self._burst = max(filling)
        return any(number <= self._burst for number in filling)

    def _relieve(self, step: Step) -> None:
        """llama.cpp has no room after all, and nothing has changed: the next turn tries with less."""
        if self._cache.drop_idle():
            return
        if len(self._roster.running) > 1:
            self._preempt()
        else:
            self._recover(step, EngineFailure("the KV cache has no room, although nothing else uses it"))

    def _recover(self, step: Step, error: Exception) -> None:
        """What the step's slots hold is undefined: those answers start again from their tokens, once for each token."""
        self._metrics.failed_steps.value += 1
        self._log_error(f"a step of {step.n_decode + step.n_prefill} tokens failed: {error!r}")
        for answer in step.answers:
            self._cache.reset(answer)
            answer.state = State.PREFILL
        for answer in step.answers:
            if answer.state is State.DONE:
                continue  # with a sibling that failed
            if answer.is_suspect:
                message = f"a step failed, and failed again when it was repeated: {error}"
                self._fail(answer.ticket, EngineFailure(message))
            else:
                answer.is_suspect = True

    def _go_on(self, answer: Answer, now: float) -> None:
        """Choose the next token of an answer, and of those that waited for the very same logits."""
        row = answer.slot
        if row is None:
            return  # its job has ended since the step began: a sibling's delivery has failed
        same = []
        for follower in self._roster.followers:
            if follower.follows is answer and follower.reach == len(answer.tokens) == len(follower.tokens):
                self._cache.fork(answer, follower)
                if follower.fed == answer.fed:
                    same.append(follower)
        # The slot's own answer last: at its end the slot may be emptied, and with it the logits.
        for one in [*same, answer]:
            if one.state is not State.DONE:
                self._choose(one, row, now)

    def _choose(self, answer: Answer, row: int, now: float) -> None:
        sampler = answer.sampler
        if sampler is None:
            raise ValueError("an answer without a sampler has a slot")
        runner = self._runner
        try:
            choice = runner.sample(row, sampler, answer.forbids_end)
            token = choice.token
            if runner.is_end(token):
                text = answer.take_end(token)
            else:
                data = runner.token_bytes(token)
                text = answer.take(choice, data)
                if answer.infos is not None and choice.logprob is not None:
                    answer.infos.add(self._info(choice, data, choice.logprob))
        except Exception as error:
            self._fail(answer.ticket, _as_backend_error(error))
            return
        answer.is_suspect = False
        self._metrics.generation_tokens.value += 1
        if answer.last_token_at is None:
            answer.first_token_at = now
            self._metrics.count_start(answer, now)
        else:
            self._metrics.inter_token.observe(now - answer.last_token_at)
        answer.last_token_at = now
        answer.state = State.DECODE
        if text or answer.infos is not None:
            self._say(answer, text, now)
        if answer.reason is not None:
            self._finish(answer, now)

    def _info(self, choice: Choice, data: bytes, logprob: float) -> TokenInfo:
        top = tuple((token, self._runner.token_bytes(token), value) for token, value in choice.top)
        return TokenInfo(choice.token, data, logprob, top)

    # -- what the client gets --------------------------------------------------------------------------------------

    def _say(self, answer: Answer, text: str, now: float) -> None:
        infos = [] if answer.infos is None else answer.infos.release(text, answer.reason is not None)
        if text or infos:
            error = self._clients.piece(answer.ticket, answer.index, text, infos, now)
            if error is not None:
                self._fail(answer.ticket, error)

    def _end_at_deadline(self, ticket: Ticket, now: float) -> None:
        """What there is is the answer, if there is anything."""
        if not ticket.has_text and ticket.left == len(ticket.answers):
            self._fail(ticket, DeadlineExceeded("the time was up before there was any text"))
            return
        for answer in list(ticket.answers):
            if answer.state is not State.DONE:
                self._say(answer, answer.end("deadline"), now)
                self._finish(answer, now)

    def _finish(self, answer: Answer, now: float) -> None:
        """Close an answer that has a reason, unless its job has failed meanwhile; with the last one the job ends."""
        ticket = answer.ticket
        if ticket.is_over or answer.reason is None:
            return
        self._roster.retire(answer)
        answer.result = answer.summary(now)
        answer.close()
        self._metrics.count_end(answer, answer.reason, now)
        ticket.left -= 1
        if not ticket.left:
            self._count_unstarted(ticket)
            self._clients.finish(ticket)

    def _fail(self, ticket: Ticket, error: BackendError) -> None:
        for answer in ticket.answers:
            if answer.state is not State.DONE:
                self._roster.retire(answer)
                answer.close()
                self._metrics.finished["abort" if isinstance(error, Cancelled) else "error"].value += 1
        self._count_unstarted(ticket)
        self._clients.fail(ticket, error)

    def _count_unstarted(self, ticket: Ticket) -> None:
        if not ticket.is_started:
            self.n_unstarted -= 1

    def update_gauges(self) -> None:
        """Bring the gauges up to date."""
        self._metrics.running.value = len(self._roster.running)
        self._metrics.waiting.value = len(self._roster.waiting)
        self._metrics.kv_usage.value = sum(answer.fed for answer in self._roster.running) / self._runner.n_cells


def _as_backend_error(error: Exception) -> BackendError:
    return error if isinstance(error, BackendError) else EngineFailure(f"internal error: {error!r}")
