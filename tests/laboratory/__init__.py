"""A network laboratory: real processes on hosts of an internet of our own, whose links one can slow, cut and partition.

    links = {"ann": Link(up_megabits=50, delay_seconds=0.02), "ben": Link(is_behind_router=True)}
    with Laboratory(links) as laboratory:
        process = laboratory.start("ann", sys.executable, "program.py", laboratory.address("ben"))
        laboratory.cut("ben")

`why_not()` says why a machine cannot have one (root, Linux' TUN device, ip and cc are needed), for tests to skip.
"""

from laboratory.emulator import Counters, LaboratoryError, why_not
from laboratory.hosts import Laboratory
from laboratory.link import Link
from laboratory.process import HostProcess

__all__ = ["Counters", "HostProcess", "Laboratory", "LaboratoryError", "Link", "why_not"]
