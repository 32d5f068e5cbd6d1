"""All schedules, in the order of PROTOCOL."""

from schedules import alone_and_late, bits, councils, deciding, dht, waiting
from schedules.schedule import Schedule

MODULES = (deciding, councils, alone_and_late, waiting, bits, dht)
ALL: list[Schedule] = [schedule for module in MODULES for schedule in module.SCHEDULES]


def by_id(id_: str) -> Schedule:
    return next(schedule for schedule in ALL if schedule.id == id_)
