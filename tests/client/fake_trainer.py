"""A trainer that trains nothing: `python -m fake_trainer CHANNEL MEMORY FOLDER …`. FOLDER/script says what it does.

Lines of the script, done in order: `ready`, `offer`, `say TEXT` (on stderr), `fail REASON`, `die SIGNAL`,
`exit STATUS`, `babble`, `wait` (for a message; Stop ends the program, and leaves FOLDER/saved), `hang` (for ever).
"""

import os
import signal
import socket
import sys
from pathlib import Path

from swarm_diloco.training.channel import Channel, Failed, Offer, Ready, Stop, Stopped

OFFER = Offer(number=1, round=0, weight=8, tokens=8, ranges=(), norm=1.0, step_seconds=0.1, num_steps=1)


def main() -> None:
    folder = Path(sys.argv[3])
    (folder / "pids").open("a").write(f"{os.getpid()}\n")
    connection = socket.socket(fileno=int(sys.argv[1]))
    with Channel(connection) as channel:
        for line in (folder / "script").read_text().splitlines():
            what, _, argument = line.partition(" ")
            match what:
                case "ready":
                    channel.send(Ready(device="none", precision="float32", micro_batch=1, parameters=1))
                case "offer":
                    channel.send(OFFER)
                case "say":
                    print(argument, file=sys.stderr, flush=True)
                case "fail":
                    channel.send(Failed(reason=argument))
                    sys.exit(14)
                case "die":
                    os.kill(os.getpid(), signal.Signals[argument])
                case "exit":
                    sys.exit(int(argument))
                case "babble":
                    connection.sendall(b"\0\0\0\4gibb")
                case "wait":
                    try:
                        message = channel.receive()
                    except EOFError:
                        (folder / "client gone").touch()
                        return
                    if isinstance(message, Stop):
                        (folder / "saved").touch()
                        channel.send(Stopped(step=1))
                        return
                case "hang":
                    signal.pause()


if __name__ == "__main__":
    main()
