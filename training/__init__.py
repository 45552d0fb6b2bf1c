"""What the shipped models were made with; nothing here runs in the gateway."""
