"""`python -m bench`: every figure the documents quote, measured here and now."""

from bench import accuracy, sorting
from bench.serving import serve

sorting.main()
print()
with serve() as served:
    accuracy.main(served.url)
