"""The rule that pools are scaled by, in a closed loop with simulated engines: does it settle?"""
