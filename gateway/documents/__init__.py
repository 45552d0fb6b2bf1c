"""POST /v1/ocr: a document becomes pages, each page a request of its own, and their answers one answer.

Imports `request` and what stands below it. Begin with `endpoint`, which reads like that; documents are opened
in a confined process of their own.
"""
