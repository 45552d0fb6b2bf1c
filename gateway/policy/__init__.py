"""Pure decisions, a folder a question: values in, a decision with its reason out.

`sort`: which route; `choose`: which engine; `admit`: who gets in; `fail`: what a failure means; `account`:
what came of it. Imports `model` and `errors` alone; the time and randomness are arguments. Begin with the
question.
"""
