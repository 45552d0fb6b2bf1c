"""Which fleet serves a load best: from profiles and a history of load."""
