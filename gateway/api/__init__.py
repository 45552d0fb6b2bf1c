"""HTTP from clients: one connection's requests and answers, the endpoints, keys, the status page.

Imports anything but `server`, `tools` and `engines`. Begin with `endpoints`; `connection` is the HTTP
server's side of a client.
"""
