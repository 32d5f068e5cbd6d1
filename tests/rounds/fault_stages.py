"""The points of a round at which the protocol's schedules strike, simulated and over hivemind alike."""

COORDINATOR_STAGES = (
    "before plan",
    "half of the plans",
    "all sealed",
    "half of the proposals",
    "majority of votes",
    "half of decided",
)
REDUCER_STAGES = ("before parts", "mid part", "sealed", "half of the gather")
