"""Runs `forerun` with the terminal of standard input as the one that controls it."""

from __future__ import annotations

import fcntl
import signal
import termios

from forerun.cli.main import main

if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A suite that runs in the background hands on that interruptions are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
