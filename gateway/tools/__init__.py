"""The commands that are programs of their own: sweep, plan, ocr, demo, engine-args.

Imports any room but `cli`; no room imports a tool. Begin with a tool's `*_command`.
"""
