"""Functions that another thread's event loop is to call: in order, and many of them for one wake-up.

To wake a loop is a system call, which also hands the interpreter lock over: it costs as much as the rest of a crossing.
So the first post wakes the loop, and those after it find it woken. A loop that is woken so early takes the interpreter
lock while the poster still posts, and gets one function where it could get a hundred. Where many are posted in one turn
of the poster's loop, `gather` waits for the end of that turn. Races that this file closes, without a lock, because a
signal handler may post too:

- A function is added while the loop takes the others. The flag is lowered *before* the first is taken: either the loop
  still sees the new function, or its post sees the lowered flag and wakes the loop again.
- Two threads find the flag lowered at once. Both wake; the second delivery may find nothing.
- A function is added before there is a loop to wake. `open` looks for it after it has set the wake function.
- A Ctrl-C between the raised flag and the wake leaves a flag that no wake-up follows: every later post would wait for
  ever. So does one that comes before the first line of a delivery. `ring` wakes without a look at the flag. The watch
  on the application loop rings both loops at each look, and after its end the last message of the runtime does.
- A Ctrl-C during a delivery, above all before the first line of a function: CPython looks for signals there. A function
  is forgotten only when it has returned, and an interrupted one is called again.
- What was gathered waits for a turn of the poster's loop, which may be blocked, or stopped, before its end. The watch
  rings for that too.
- A Ctrl-C after `gather` has returned True: its caller did not plan the ring. The next delivery lowers the flag.
- Two threads post to a loop that has ended. Each must get the error, also while the other has raised the
  flag and not yet lowered it again: see `post`.
- A function is added during the last delivery of a loop that ends. It is dropped as those after it are. An error of the
  wake-up in that delivery would become an error of the loop: trio ends the whole run with a TrioInternalError.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

Function = Callable[[], object]
Wake = Callable[[Function], object]


class Mailbox:
    """Posted functions, in their order, for one event loop.

    They must not raise. One that a Ctrl-C hits is called again, from its beginning, even if it had almost returned.

    Args:
        wake: Calls a function in the loop, from any thread; raises RuntimeError if the loop has ended. Without it,
            functions wait until `open`.
    """

    __slots__ = ("_functions", "_is_ring_planned", "_is_woken", "_wake")

    def __init__(self, wake: Wake | None = None) -> None:
        self._wake = wake
        self._functions: deque[Function] = deque()
        self._is_woken = False
        self._is_ring_planned = False

    def open(self, wake: Wake) -> None:
        """From now on functions are delivered; first those that wait."""
        self._wake = wake
        if self._functions:
            self.ring()

    def close(self) -> None:
        """From now on a post raises RuntimeError. What was not delivered yet is dropped."""
        self._wake = _closed
        self._functions.clear()

    def post(self, function: Function) -> None:
        """Call the function in the loop, soon. From any thread, and from signal handlers.

        Raises:
            RuntimeError: The loop has ended, so the function is not called.
        """
        self._functions.append(function)
        if not self._is_woken or self._wake is _closed:  # Another thread may have raised the flag in vain.
            self.ring()

    def gather(self, function: Function) -> bool:
        """Call the function in the loop after the next `ring_for_gathered`. From any thread.

        Returns:
            Whether the caller has to plan that, at the end of this turn of its own loop.
        """
        self._functions.append(function)
        if self._is_woken or self._is_ring_planned:
            return False
        self._is_ring_planned = True
        return True

    def ring_for_gathered(self) -> None:
        """Wake the loop if a function waits for that.

        Raises:
            RuntimeError: The loop has ended.
        """
        self._is_ring_planned = False
        if self._functions and not self._is_woken:
            self.ring()

    def ring(self) -> None:
        """Wake the loop, whether it is woken already or not.

        Raises:
            RuntimeError: The loop has ended.
        """
        wake = self._wake
        if wake is None:
            return
        if wake is _closed:
            self._functions.clear()  # Nothing takes them.
        try:
            self._is_woken = True
            wake(self._deliver)
        except BaseException:
            self._is_woken = False
            raise

    def _deliver(self) -> None:
        functions = self._functions
        try:
            self._is_woken = self._is_ring_planned = False
            for _ in range(len(functions)):  # A function that posts again waits for the next turn of the loop.
                try:
                    functions[0]()
                except KeyboardInterrupt:
                    raise
                except BaseException:
                    functions.popleft()
                    raise
                functions.popleft()
        finally:
            # Also after an interrupt: none is forgotten.
            if functions and not self._is_woken:
                with suppress(RuntimeError):  # The loop has ended.
                    self.ring()


def _closed(_: Function) -> NoReturn:
    raise RuntimeError("the event loop has ended")
