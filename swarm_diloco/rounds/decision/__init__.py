"""How a round is decided: promises, ballots, votes and commits (protocol rules 4 to 7), with no clock and no I/O.

Two parts. A `Voter` is what a peer must remember to be trusted: what it promised, what it voted for. A `Ballot` is one
coordinator's side of (round, ballot): messages go in by its methods, `advance(now)` gives what is to be done. Engine,
network and disk stand around them, and so does the test that interleaves them at random.

Safety in three lines: a commit is decided when a majority of the council has voted for it at one ballot; who knocks at
ballot b votes at no lower one any more, and says what it has voted for; past ballot 0 a coordinator has a majority's
knocks and proposes, unchanged, the reported commit of the highest ballot.
"""
