"""`python -m bench`: the short benchmarks, one after the other; bench/README.md says what they measure."""

from bench import accounting, faults, sorting, walk
from bench.choice.__main__ import main as choice

# Guarded: where processes are spawned and not forked, they import this again.
if __name__ == "__main__":
    sorting.main()
    print()
    accounting.main()
    print()
    choice(["--quick"])
    print()
    faults.main(["--quick"])
    print()
    walk.main()
