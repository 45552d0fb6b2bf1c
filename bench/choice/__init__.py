"""Figures of choosing the engine by its load: simulated fleets in virtual time, the gateway's State."""
