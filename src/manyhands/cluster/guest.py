"""A front as the owner sees it: its commands, the answers it has not confirmed, its hands."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from manyhands.cluster.hands import ANYWHERE, FarHands
from manyhands.cluster.link import (
    Answers,
    Ask,
    Asks,
    Begin,
    Counts,
    End,
    LinkError,
    Message,
    Packed,
    Ping,
    Sent,
    Signals,
    Undecided,
    Wake,
    Want,
)
from manyhands.cluster.news import news_of
from manyhands.model.events import Signal
from manyhands.model.job import State
from manyhands.model.replies import Refusal, Reply, Why
from manyhands.store.batch import Batch

if TYPE_CHECKING:
    from manyhands.cluster.router import Router

# Jobs of the owner's index that are sent before others get their turn: about 5 ms.
_PART_JOBS: Final = 2_000
Send = Callable[[Sent], None]
TOO_LARGE: Final = Refusal(
    Why.BATCH_TOO_LARGE,
    "it was done, but the answer is too large to be passed on by another server",
)


class Guest:
    """One front, over one link after the other. It is remembered while it lives, so that a link
    that breaks loses no answer.
    """

    def __init__(self, router: "Router", incarnation: str) -> None:
        self.incarnation = incarnation
        self._router = router
        self._link: Send | None = None
        self._send: Send | None = None  # the link, once this server decides
        self._seen = 0  # the number of the last command
        self._unconfirmed: dict[int, Reply] = {}
        self._answers: list[tuple[int, Reply]] = []
        self._signals: list[Signal] = []
        self._news: list[Packed] = []
        self._wakes: dict[str, int] = {}
        self._hands = FarHands(router.sleepers, self._wake)
        self._parts: Iterator[Batch] | None = None  # of what it does not know yet
        self._told_with = 0  # what it was sent may hold decisions up to this batch
        self._soon = False

    # The link.

    def call(self, send: Send) -> None:
        """The front has called."""
        self.detach()
        self._link = send

    def attach(self) -> None:
        """This server decides: the front gets to know everything."""
        if self._link is None:
            return
        send = self._send = self._link
        # It asks again for what it lacks; that may come later than the answers to what it asked
        # afterwards, so all that it has not confirmed goes first.
        self._answers = list(self._unconfirmed.items())
        self._news.clear()
        self._wakes.clear()
        self._signals.clear()
        send(Begin(self._router.epoch, self._router.events.published_seq))
        self._parts = self._router.original.parts(_PART_JOBS)
        self._send_part()
        self._flush_soon()

    def detach(self) -> None:
        """The link broke. Signals meanwhile are lost, as they are on any broken connection."""
        self._link = self._send = None
        self._parts = None
        self._hands.leave()

    def retire(self) -> None:
        """This server does not decide any more; the link stays."""
        self._flush()
        self._send = None
        self._parts = None
        self._hands.leave()

    def decline(self, message: Message) -> None:
        """What it asks is for the next owner; but what it asks once more may be decided already."""
        if isinstance(message, Asks) and self._link is not None:
            numbers = tuple(ask.number for ask in message.asks if ask.number > self._seen)
            if numbers:
                self._link(Undecided(numbers))

    def is_linked_by(self, send: Send) -> bool:
        """Whether that is its link."""
        return self._link == send

    def _send_part(self) -> None:
        if self._send is None or self._parts is None:
            return
        batch = next(self._parts, None)
        router = self._router
        if batch is not None:
            for news in news_of(batch, router):
                self._send(news)
            router.loop.call_soon(self._send_part)
            return
        self._parts = None
        self._told_with = router.open_number()
        self._send(End(router.original.graphs))
        self.count(router.original.counts(all_of_them=True))

    # What it says.

    def take(self, message: Message) -> None:
        """Takes a message of the front."""
        if isinstance(message, Asks):
            self._confirm(message.confirmed)
            for ask in message.asks:
                self._ask(ask)
        elif isinstance(message, Want):
            self._want(message)
        elif isinstance(message, Ping):
            self._confirm(message.confirmed)

    def _confirm(self, below: int) -> None:
        """It has the answers to all commands below this number."""
        unconfirmed = self._unconfirmed
        for number in list(unconfirmed):
            if number >= below:
                break
            del unconfirmed[number]

    def _ask(self, ask: Ask) -> None:
        number = ask.number
        if number <= self._seen:
            # It was asked over an earlier link. If the answer is not there yet, it will be.
            if number in self._unconfirmed:
                self._put_answer(number, self._unconfirmed[number])
            return
        self._seen = number
        settle = partial(self._settle, number)
        judge = None if ask.sender is None else self._router.judge_of(ask.sender)
        if ask.again:
            self._router.ask_again(ask.command, settle, judge=judge)
        else:
            self._router.ask_later(ask.command, settle, None, judge)

    def _settle(self, number: int, reply: Reply) -> None:
        self._unconfirmed[number] = reply
        self._put_answer(number, reply)

    def _put_answer(self, number: int, reply: Reply) -> None:
        if self._send is not None:
            self._answers.append((number, reply))
            self._flush_soon()

    def _want(self, message: Want) -> None:
        for queue, hands in message.hands:
            if self._hands.want(queue, hands):
                self._look_at(queue)
        for queue, _ in message.unused:
            self._look_at(queue)

    def _look_at(self, queue: str) -> None:
        waking = self._router.waking
        if queue == ANYWHERE:
            waking.where_there_is_work()
        else:
            waking.look_at(queue)

    # What is sent to it.

    def follows(self, batch: Batch) -> bool:
        """Whether it knew everything before this batch, so that what happened in it is enough."""
        return self._parts is None and batch.number > self._told_with

    def publish(self, news: Sequence[Packed]) -> None:
        """What was committed. In a turn it goes before the answers, so that whoever has an answer
        sees what it is about.
        """
        if self._send is not None:
            self._news += news
            self._flush_soon()

    def count(self, finished: dict[str, dict[State, int]]) -> None:
        """How many finished jobs are on record, where retention has changed that."""
        if self._send is not None and self._parts is None:
            self._flush()  # what was announced before is not counted again
            router = self._router
            self._send(Counts(finished, router.applied_number(), router.applied_seq()))

    def signal(self, signal: Signal) -> None:
        """A signal to some of its connections."""
        if self._send is not None:
            self._signals.append(signal)
            self._flush_soon()

    def _send_answers(self, send: Send, answers: list[tuple[int, Reply]]) -> None:
        epoch = self._router.epoch
        try:
            send(Answers(epoch, tuple(answers)))
        except LinkError:
            for number, reply in answers:
                try:
                    send(Answers(epoch, ((number, reply),)))
                except LinkError:
                    self._unconfirmed[number] = TOO_LARGE
                    send(Answers(epoch, ((number, TOO_LARGE),)))

    def _wake(self, queue: str) -> None:
        self._wakes[queue] = self._wakes.get(queue, 0) + 1
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self._router.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._soon = False
        send = self._send
        if send is None:
            return
        news, self._news = self._news, []
        for each in news:
            send(each)
        answers, self._answers = self._answers, []
        if answers:
            self._send_answers(send, answers)
        if self._signals:
            send(Signals(tuple(self._signals)))
            self._signals = []
        if self._wakes:
            send(Wake(tuple(self._wakes.items())))
            self._wakes = {}
