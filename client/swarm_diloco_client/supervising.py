"""Keeps a trainer running: one that dies is started anew, after pauses that grow until it works again."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from swarm_diloco_client.trainer_process import TrainerProcess

PAUSES_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # before a restart, by failures in a row; then the last for ever

Say = Callable[[str], None]
Start = Callable[[], Awaitable[TrainerProcess]]
Converse = Callable[[TrainerProcess], Awaitable[bool]]  # until it is gone; whether it brought anything about


async def keep_training(
    start: Start, converse: Converse, *, say: Say, pauses: Sequence[float] = PAUSES_SECONDS
) -> None:
    """Run trainers one after the other until cancelled; the last one then writes its checkpoint and ends.

    The swarm's θ is in shared memory and unharmed: a new trainer begins from it and from its last checkpoint.
    """
    failures = 0
    while True:
        worked = False
        try:
            trainer = await start()
        except OSError as error:  # no memory, no processes left
            reason = f"it could not be started ({error.strerror or error})"
        else:
            try:
                worked = await converse(trainer)
                reason = await trainer.why_ended()
            finally:
                await trainer.stop()
        failures = 1 if worked else failures + 1
        pause = pauses[min(failures, len(pauses)) - 1]
        say(f"the trainer ended: {reason}. It starts again in {pause:g} s")
        await asyncio.sleep(pause)
