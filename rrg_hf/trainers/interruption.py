"""Ctrl-C during training: stop where a run can be resumed."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)


class DeferredInterrupt:
    """Context in which the first Ctrl-C only sets `pending`; the second one raises `KeyboardInterrupt` at once.

    Model, optimizer, data order and random state agree at the end of a step and nowhere else, so that is where the
    trainer looks at `pending`. Outside the main thread, or where somebody else handles SIGINT, it does nothing.
    """

    def __init__(self) -> None:
        self.count = 0
        self._installed = False

    @property
    def pending(self) -> bool:
        return self.count > 0

    def __enter__(self) -> DeferredInterrupt:
        self.count = 0
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._installed = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._installed:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        logger.warning("Interrupted: writing a checkpoint after this step. Press Ctrl-C again to stop at once.")
