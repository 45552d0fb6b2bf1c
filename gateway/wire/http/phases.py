"""The phases of a client's connection, and of a request on it: tables of phase and event to the next phase.

A move that is not in its table cannot happen, and raises KeyError.
"""

from __future__ import annotations

from enum import IntEnum, auto


class ConnectionPhase(IntEnum):
    """What a connection waits for.

    Attributes:
        IDLE: nothing of a request has come.
        HEAD: a part of a request's head has come.
        EXCHANGE: a request is received and answered.
        LAST_ANSWER: likewise, but what comes is no request: it is dropped, and the answer is the last.
        UNREAD: the request has been answered, and its client has yet to read that.
        LINGERING: the last answer has been given; the client may be sending, which is read and dropped, as to
            close at once would reset the connection, and could take the answer from the client.
        CLOSING: nothing is read any more; what has been written still goes out.
        CLOSED: it is over.
    """

    IDLE = auto()
    HEAD = auto()
    EXCHANGE = auto()
    LAST_ANSWER = auto()
    UNREAD = auto()
    LINGERING = auto()
    CLOSING = auto()
    CLOSED = auto()


class ConnectionEvent(IntEnum):
    """What happens to a connection.

    Attributes:
        BYTES: the first bytes of a request have come.
        HEAD_ENDS: the head is complete, and is a request's.
        FAULT: what comes during a request is wrong.
        ANSWERED: an answer has been written, behind which more requests may come.
        READ: the client has read all that was written.
        LINGER: the last answer has been written, and the client may be sending.
        CLOSE: no more is to be read.
        LOST: the connection is gone, or dropped with what waits to be sent.
    """

    BYTES = auto()
    HEAD_ENDS = auto()
    FAULT = auto()
    ANSWERED = auto()
    READ = auto()
    LINGER = auto()
    CLOSE = auto()
    LOST = auto()


class RequestPhase(IntEnum):
    """How far a request has come, and its answer.

    Attributes:
        RECEIVING: its body has not come to its end.
        RECEIVED: its body is complete.
        FAULTY: the rest of its body will not be read.
        ANSWERING_EARLY: the answer began before the body was complete.
        ANSWERING: the answer has begun.
        ANSWERED_EARLY: the answer is complete, and the body never was.
        ANSWERED: the answer is complete.
        LEFT: the client left before the answer was complete; nothing is sent any more.
    """

    RECEIVING = auto()
    RECEIVED = auto()
    FAULTY = auto()
    ANSWERING_EARLY = auto()
    ANSWERING = auto()
    ANSWERED_EARLY = auto()
    ANSWERED = auto()
    LEFT = auto()


class RequestEvent(IntEnum):
    """What happens to a request; its body fails where the rest of it is wrong, too much or too slow."""

    BODY_ENDS = auto()
    BODY_FAILS = auto()
    ANSWER_BEGINS = auto()
    ANSWER_ENDS = auto()
    CLIENT_LEAVES = auto()


_C, _CE = ConnectionPhase, ConnectionEvent
CONNECTION: dict[tuple[ConnectionPhase, ConnectionEvent], ConnectionPhase] = {
    (_C.IDLE, _CE.BYTES): _C.HEAD,
    (_C.IDLE, _CE.LINGER): _C.LINGERING,  # there is no room for it
    (_C.IDLE, _CE.CLOSE): _C.CLOSING,
    (_C.HEAD, _CE.HEAD_ENDS): _C.EXCHANGE,
    (_C.HEAD, _CE.LINGER): _C.LINGERING,
    (_C.HEAD, _CE.CLOSE): _C.CLOSING,
    (_C.EXCHANGE, _CE.FAULT): _C.LAST_ANSWER,
    (_C.EXCHANGE, _CE.ANSWERED): _C.UNREAD,
    (_C.EXCHANGE, _CE.LINGER): _C.LINGERING,
    (_C.EXCHANGE, _CE.CLOSE): _C.CLOSING,
    (_C.LAST_ANSWER, _CE.LINGER): _C.LINGERING,
    (_C.UNREAD, _CE.READ): _C.IDLE,
    (_C.UNREAD, _CE.BYTES): _C.HEAD,
    (_C.UNREAD, _CE.CLOSE): _C.CLOSING,
    **{(phase, _CE.LOST): _C.CLOSED for phase in _C},
}
# What comes in these is dropped.
DEAF = frozenset({_C.LAST_ANSWER, _C.LINGERING, _C.CLOSING, _C.CLOSED})
# No more requests are taken, and none is under way.
ENDED = frozenset({_C.LINGERING, _C.CLOSING, _C.CLOSED})

_R, _RE = RequestPhase, RequestEvent
REQUEST: dict[tuple[RequestPhase, RequestEvent], RequestPhase] = {
    (_R.RECEIVING, _RE.BODY_ENDS): _R.RECEIVED,
    (_R.RECEIVING, _RE.BODY_FAILS): _R.FAULTY,
    (_R.RECEIVING, _RE.ANSWER_BEGINS): _R.ANSWERING_EARLY,
    (_R.RECEIVED, _RE.ANSWER_BEGINS): _R.ANSWERING,
    (_R.FAULTY, _RE.ANSWER_BEGINS): _R.ANSWERING_EARLY,
    (_R.ANSWERING_EARLY, _RE.BODY_ENDS): _R.ANSWERING,
    (_R.ANSWERING_EARLY, _RE.BODY_FAILS): _R.ANSWERING_EARLY,
    (_R.ANSWERING_EARLY, _RE.ANSWER_ENDS): _R.ANSWERED_EARLY,
    (_R.ANSWERING, _RE.ANSWER_ENDS): _R.ANSWERED,
    (_R.LEFT, _RE.ANSWER_BEGINS): _R.LEFT,
    **{(phase, _RE.CLIENT_LEAVES): _R.LEFT for phase in _R},
    (_R.ANSWERED_EARLY, _RE.CLIENT_LEAVES): _R.ANSWERED_EARLY,
    (_R.ANSWERED, _RE.CLIENT_LEAVES): _R.ANSWERED,
}
# More of the body may come.
INCOMPLETE = frozenset({_R.RECEIVING, _R.ANSWERING_EARLY})
# No answer has begun.
UNANSWERED = frozenset({_R.RECEIVING, _R.RECEIVED, _R.FAULTY})
# The answer is complete.
COMPLETE = frozenset({_R.ANSWERED_EARLY, _R.ANSWERED})
