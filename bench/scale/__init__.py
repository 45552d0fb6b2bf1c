"""How the gateway's cost grows: with engines, routes, requests at once, bodies and events."""
