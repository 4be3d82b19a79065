"""When an interruption is raised: once, at once or after a block, and never while clean-up is going on."""

import os
import signal

import pytest

from harness.signals import allowed, deferred, interruptible, shielded


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


@pytest.fixture(autouse=True)
def unchanged_handlers():
    before = handlers()
    yield
    assert handlers() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_of_the_signals_interrupts_once(number):
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            interrupt(number)
        interrupt()
        interrupt(number)


def test_a_deferred_signal_is_raised_when_the_outermost_block_is_left():
    done = []
    with interruptible():
        with pytest.raises(KeyboardInterrupt), deferred():
            with deferred():
                interrupt()
                done.append("inner")
            done.append("outer")
        interrupt()
    assert done == ["inner", "outer"]


def test_deferred_works_on_its_own():
    with pytest.raises(KeyboardInterrupt), deferred():
        interrupt()


def test_nothing_is_raised_where_nothing_was_heard():
    with interruptible(), deferred(), allowed(), shielded():
        pass


def test_allowed_raises_at_once_and_what_follows_is_deferred_again():
    done = []
    with interruptible(), shielded():
        with pytest.raises(KeyboardInterrupt), allowed():
            interrupt()
            done.append("not reached")
        interrupt()
        done.append("clean-up")
    assert done == ["clean-up"]


def test_allowed_raises_what_was_waiting():
    with interruptible(), shielded():
        interrupt()
        with pytest.raises(KeyboardInterrupt), allowed():
            raise AssertionError("the waiting signal must come first")


def test_a_shielded_end_is_not_spoilt_by_a_late_signal():
    with interruptible():
        with shielded():
            interrupt()
        interrupt()


def test_an_error_in_a_deferred_block_gives_way_to_the_interruption():
    with pytest.raises(KeyboardInterrupt) as caught, deferred():
        interrupt()
        raise ValueError("x")
    assert isinstance(caught.value.__context__, ValueError)
