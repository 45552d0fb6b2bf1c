"""The commands that are programs of their own: sweep, plan, ocr, demo, and the small ones in a module each.

A tool imports any room but `cli`, and no other tool; all share `output` (what is printed) and `option_types`.
No room imports a tool. Begin with a tool's `*_command`, which goes from its options to what it prints and
writes.
"""
