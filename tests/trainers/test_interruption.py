"""Ctrl-C is deferred to the end of a step, once."""

from __future__ import annotations

import logging
import os
import signal
import threading

import pytest

from rrg_hf.trainers.interruption import DeferredInterrupt


@pytest.fixture(autouse=True)
def _python_handles_ctrl_c() -> None:
    """pytest and notebooks may have put a handler of their own there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_press_waits_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    interrupt = DeferredInterrupt()
    with caplog.at_level(logging.WARNING), interrupt:
        assert not interrupt.pending
        press_ctrl_c()
        assert interrupt.pending
    assert "Press Ctrl-C again to stop at once" in caplog.text
    assert interrupt.pending  # whoever looks after the block still sees it


def test_the_second_press_stops_at_once() -> None:
    interrupt = DeferredInterrupt()
    with pytest.raises(KeyboardInterrupt), interrupt:
        press_ctrl_c()
        press_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()  # Python's own handler is back


def test_pythons_handler_comes_back_after_an_error() -> None:
    with pytest.raises(RuntimeError), DeferredInterrupt():
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_use_starts_anew() -> None:
    interrupt = DeferredInterrupt()
    with interrupt:
        press_ctrl_c()
    with interrupt:
        assert not interrupt.pending
        press_ctrl_c()  # would be the second press, had the count stayed
        assert interrupt.count == 1


def test_somebody_elses_handler_is_left_alone() -> None:
    seen: list[int] = []
    mine = lambda number, frame: seen.append(number)  # noqa: E731
    signal.signal(signal.SIGINT, mine)
    interrupt = DeferredInterrupt()
    with interrupt:
        press_ctrl_c()
    assert seen == [signal.SIGINT] and not interrupt.pending
    assert signal.getsignal(signal.SIGINT) is mine


def test_outside_the_main_thread_it_does_nothing() -> None:
    found: list[object] = []

    def work() -> None:
        with DeferredInterrupt():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
