"""`python -m bench`: the figures that the documents quote, measured here and now.

The longest have their own commands: `python -m bench.published` and `python -m bench.plan`, 20 minutes each,
`python -m bench.autoscaling`, and `python -m bench.looking`, `python -m bench.overhead` and
`python -m bench.scale`, which want a quiet machine.
"""

from bench import accounting, accuracy, bookkeeping, engine_http, faults, looking, parsing, published, sorting
from bench.choice.__main__ import main as choice
from bench.scale.__main__ import main as scale

# Guarded: where processes are spawned and not forked, they import this again.
if __name__ == "__main__":
    sorting.main()
    print()
    looking.main(["--quick"])
    print()
    parsing.main()
    print()
    accounting.main()
    print()
    bookkeeping.main()
    print()
    engine_http.main()
    print()
    accuracy.main()
    print()
    choice([])
    print()
    faults.main(["--quick"])
    print()
    published.main(["--quick"])
    print()
    scale(["--quick"])
