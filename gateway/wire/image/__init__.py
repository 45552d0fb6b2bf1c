"""Pictures as bytes: data URLs, headers, structure, pixels, and the URLs of remote ones.

Imports `model`, `hosts` and `errors`. Begin with `headers`.
"""
