"""What a gateway costs: ours beside others, each on one core, before the same engine and the same clients."""
