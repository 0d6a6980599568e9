"""The outbox keeps order and outlives nothing it was given; the watcher looks at running requests only."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from llamacpp_backend import delivery
from llamacpp_backend.delivery import Outbox, Watcher

Wait = Callable[[Callable[[], bool]], None]


def ignore(_line: str) -> None:
    """Where errors go that a test does not expect."""


class Request:
    """Counts looks; `useful` until it is told otherwise."""

    def __init__(self) -> None:
        self.looks = 0
        self.useful = True

    def look(self) -> bool:
        self.looks += 1
        return self.useful


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.002)
    watcher = Watcher(ignore)
    yield watcher
    watcher.close()
    assert not watcher._thread.is_alive()


def test_outbox_delivers_in_order_on_its_own_thread() -> None:
    outbox = Outbox(ignore)
    seen: list[tuple[int, int]] = []
    for number in range(1000):
        outbox.put(lambda number=number: seen.append((number, threading.get_ident())))  # type: ignore[misc]
    outbox.close()
    assert [number for number, _ in seen] == list(range(1000))
    assert {thread for _, thread in seen} == {outbox._thread.ident}


def test_putting_does_not_wait_for_the_delivery() -> None:
    outbox = Outbox(ignore)
    gate = threading.Event()
    outbox.put(lambda: None if gate.wait(5) else pytest.fail("the gate never opened"))
    outbox.put(lambda: None)
    gate.set()
    outbox.close()


def test_watcher_looks_until_it_is_no_use(watcher: Watcher, wait_until: Wait) -> None:
    ending, staying = Request(), Request()
    watcher.add(ending)
    watcher.add(staying)
    wait_until(lambda: ending.looks >= 2)
    ending.useful = False
    wait_until(lambda: watcher._watched == {staying})
    looks = ending.looks
    wait_until(lambda: staying.looks > looks + 5)
    assert ending.looks == looks


def test_watcher_sleeps_when_idle_and_wakes(watcher: Watcher, wait_until: Wait) -> None:
    first, second = Request(), Request()
    first.useful = False
    watcher.add(first)
    wait_until(lambda: not watcher._some.is_set())
    watcher.add(second)
    wait_until(lambda: second.looks > 0)
    assert first.looks == 1


def test_requests_that_end_at_once_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 60)
    watcher, request = Watcher(ignore), Request()
    watcher.add(request)
    watcher.close()
    assert request.looks == 0


def test_a_watcher_that_is_closed_while_it_looks_for_the_last_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last request ends in the very look in which `close` is called: an unload must not wait for ever."""
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.002)
    watcher, request = Watcher(ignore), Request()
    closing = threading.Thread(target=watcher.close, daemon=True)

    def look() -> bool:
        closing.start()
        watcher._closing.wait(5)
        time.sleep(0.05)  # `close` goes on to wake the thread up, and waits for it
        return False

    request.look = look  # type: ignore[method-assign]
    watcher.add(request)
    watcher._thread.join(5)
    ended = not watcher._thread.is_alive()
    watcher._some.set()  # whatever was found, leave no thread behind
    assert ended


def test_a_delivery_that_raises_is_logged_and_the_next_one_runs() -> None:
    errors: list[str] = []
    outbox = Outbox(errors.append)
    seen: list[int] = []

    def fail() -> None:
        raise MemoryError

    outbox.put(fail)
    outbox.put(lambda: seen.append(1))
    outbox.close()
    assert (seen, errors) == ([1], ["an answer could not be delivered: MemoryError()"])


def test_a_look_that_raises_ends_only_its_own_request(monkeypatch: pytest.MonkeyPatch, wait_until: Wait) -> None:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.002)
    errors: list[str] = []
    watcher, good, bad = Watcher(errors.append), Request(), Request()
    bad.look = lambda: 1 // 0 > 0  # type: ignore[method-assign]
    watcher.add(bad)
    watcher.add(good)
    wait_until(lambda: good.looks > 3)
    watcher.close()
    assert len(errors) == 1


def test_idle_threads_hold_no_request(monkeypatch: pytest.MonkeyPatch, wait_until: Wait) -> None:
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.002)
    outbox, watcher = Outbox(ignore), Watcher(ignore)
    delivered, looked_at = Request(), Request()
    delivered.useful = looked_at.useful = False
    left = [weakref.ref(delivered), weakref.ref(looked_at)]
    outbox.put(lambda request=delivered: request.look() and None)  # type: ignore[misc]
    watcher.add(looked_at)
    del delivered, looked_at
    wait_until(lambda: [request() for request in left] == [None, None])
    outbox.close()
    watcher.close()
