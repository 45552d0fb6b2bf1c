"""How good the choice of engines is: the gateway's own State over simulated fleets, in virtual time."""
