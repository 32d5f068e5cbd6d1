"""*DHT*, as far as the simulated network has one: rounds need none. Its own faults are shown over hivemind."""

from schedules import bounds
from schedules.schedule import BOUNDS, FOUR, Schedule, Trial


async def discovery_is_dead(trial: Trial) -> None:
    """Nothing is published and nothing found: rounds go on, one dies, one comes by the address in its invite."""
    await trial.begin()
    await trial.reach(3)
    trial.world.discovery_works = False
    found = await trial.world.networks[trial.peers["ann"].peer].discover()
    assert not found
    trial.strike()
    trial.kill(trial.peers["cleo"], silently=True)
    await trial.reach(trial.struck_round)
    await trial.further(3)
    dan = trial.peer("dan")
    await trial.start("dan")
    await trial.until_listed(dan, trial.head)
    await trial.restart(trial.peers["cleo"])
    await trial.further(4)


SCHEDULES = [
    Schedule(
        group="dht",
        name="discovery is dead",
        play=discovery_is_dead,
        names=FOUR,
        bound=bounds.next_ballot(BOUNDS),
    )
]
