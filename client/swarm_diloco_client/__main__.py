"""`python -m swarm_diloco_client`: the same program as `swarm-diloco`."""

from swarm_diloco_client.cli import main

main()
