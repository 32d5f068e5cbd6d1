"""The real deciding module of rounds/ under every disorder that a network and crashes can make.

`World` is one run from one seed: peers that hold the real Voter, Ballot and checks, a bag of messages that are lost,
doubled and delivered in any order, crashes between any two steps. `Witness` sees all that leaves a peer and raises
`Violation` when a rule that safety rests on is broken. `mutants` are the module with one rule broken each.
"""
