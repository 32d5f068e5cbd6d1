"""All schedules, in the order of PROTOCOL."""

from schedules import councils, deciding
from schedules.schedule import Schedule

ALL: list[Schedule] = [*deciding.SCHEDULES, *councils.SCHEDULES]


def by_id(id_: str) -> Schedule:
    return next(schedule for schedule in ALL if schedule.id == id_)
