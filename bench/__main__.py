"""`python -m bench`: every figure the documents quote, measured here and now."""

from bench import accounting, accuracy, faults, sorting
from bench.choice.__main__ import main as choice

# Guarded: where processes are spawned and not forked, they import this again.
if __name__ == "__main__":
    sorting.main()
    print()
    accounting.main()
    print()
    accuracy.main()
    print()
    choice([])
    print()
    faults.main(["--quick"])
