"""How much of the memory for requests under way one client may hold, and how much of it there is."""

from __future__ import annotations

_MIB = 2**20
# What a gateway without requests takes, with room for its connections' buffers; its two processes that look
# at images, at rest; and what looking may take (gateway.images.inspector).
_RESERVED = (192 + 128 + 512) * _MIB
# An open document's process, with what a page made to need it may take (gateway.documents.open_document).
_DOCUMENT = (96 + 512) * _MIB
# So much memory for each open document, and no more of them, where nobody says.
_FOR_A_DOCUMENT, _DOCUMENTS = 2048 * _MIB, 4
# One of two places is kept for clients that have no document open.
_FOR_TWO_DOCUMENTS = _RESERVED + 2 * _DOCUMENT + 512 * _MIB
# Resident bytes that a byte held has been measured to cost, at worst: see docs/configuration.md.
_FACTOR = 3
# Where there is hardly any memory one large page must still pass.
_LEAST = 64 * _MIB


def may_hold(more: int, *, own: int, total: int, limit: int) -> bool:
    """Whether a client may hold so many bytes more: at the most as many as would be left free.

    A client alone gets half of the memory, and each of n that want more than their share 1 / (n + 1): what is
    left is there at once for one that comes anew. These are the dynamic thresholds of Choudhury and Hahne
    ("Dynamic queue length thresholds for shared-memory packet switches", 1998) with a factor of 1.

    Args:
        more: bytes that the client asks for.
        own: bytes that it holds.
        total: bytes that all hold.
        limit: bytes there are.
    """
    return own + more <= limit - total - more


def default_documents(memory_bytes: int) -> int:
    """Return how many documents a process that may use `memory_bytes` may have open at a time."""
    least = 2 if memory_bytes >= _FOR_TWO_DOCUMENTS else 1
    return min(max(memory_bytes // _FOR_A_DOCUMENT, least), _DOCUMENTS)


def default_limit(memory_bytes: int, documents: int) -> int:
    """Return the bytes that requests may hold in a process that may use `memory_bytes`, beside documents.

    Args:
        memory_bytes: all there are.
        documents: how many may be open at a time.
    """
    return max(_LEAST, (memory_bytes - _RESERVED - documents * _DOCUMENT) // _FACTOR)
