"""HTTP from clients: one connection's requests and answers, the endpoints, keys, the status page.

Imports anything but `server`, `tools` and `engines`. Begin with `connection` for the HTTP of a
client, and with `application` for what becomes of a request.
"""
