"""`python -m bench`: every figure the documents quote, measured here and now."""

from bench import accuracy, sorting

sorting.main()
print()
accuracy.main()
