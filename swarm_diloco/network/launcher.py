"""Run as a program: `python launcher.py PARENT-PID PROGRAM ARGUMENT…` becomes PROGRAM, which dies when PARENT does.

Linux alone has a parent-death signal; elsewhere p2pd's idle timeout ends it. The signal belongs to the *thread* that
started us, so that has to be the main one. Needs nothing but the standard library: it starts with -I -S, in 20 ms.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit("no parent-death signal on this system")
    if os.getppid() != parent:  # it died before the signal was asked for
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - a program of ours, no shell


if __name__ == "__main__":
    main()
