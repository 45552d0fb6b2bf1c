import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.fail.breaker import Breaker, Outcome, Phase, Rules

RULES = Rules(failures=3, open_s=10, probes=2)
NEW = Breaker()
SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


def fed(breaker: Breaker, *outcomes: Outcome, now: float = 0) -> Breaker:
    for outcome in outcomes:
        breaker = breaker.after(outcome, now, RULES)
    return breaker


OPEN = fed(NEW, FAILURE, FAILURE, FAILURE)
HALF_OPEN = OPEN.at(10, RULES)


def test_phases_are_the_numbers_of_the_metric() -> None:
    assert [(phase.name, phase.value) for phase in Phase] == [("CLOSED", 0), ("HALF_OPEN", 1), ("OPEN", 2)]


def test_failures_in_a_row_open_it() -> None:
    assert fed(NEW, FAILURE, FAILURE).phase is Phase.CLOSED
    assert (OPEN.phase, OPEN.since) == (Phase.OPEN, 0)


def test_a_success_between_failures_keeps_it_closed() -> None:
    assert fed(NEW, FAILURE, FAILURE, SUCCESS, FAILURE, FAILURE).phase is Phase.CLOSED


def test_a_client_that_leaves_between_failures_does_not() -> None:
    assert fed(NEW, FAILURE, NEUTRAL, FAILURE, NEUTRAL, FAILURE).phase is Phase.OPEN


def test_probes_are_let_through_after_the_pause_and_not_before() -> None:
    assert not OPEN.at(9.9, RULES).allows(0, RULES)
    assert HALF_OPEN.phase is Phase.HALF_OPEN
    assert [HALF_OPEN.allows(in_flight, RULES) for in_flight in (0, 1, 2, 50)] == [True, True, False, False]


def test_when_it_is_asked_makes_no_difference_to_which_failures_count() -> None:
    assert OPEN.at(500, RULES) == HALF_OPEN
    assert OPEN.at(500, RULES).after(FAILURE, 500, RULES, begun=12).phase is Phase.OPEN


def test_successful_probes_close_it() -> None:
    assert fed(HALF_OPEN, SUCCESS).phase is Phase.HALF_OPEN
    closed = fed(HALF_OPEN, SUCCESS, NEUTRAL, SUCCESS)
    assert (closed.phase, closed.failures) == (Phase.CLOSED, 0)
    assert closed.allows(500, RULES)


def test_one_failed_probe_opens_it_for_the_whole_pause_again() -> None:
    again = fed(HALF_OPEN, SUCCESS, FAILURE, now=12)
    assert again.at(21.9, RULES).phase is Phase.OPEN
    assert again.at(22, RULES).phase is Phase.HALF_OPEN


def test_late_ends_neither_shorten_nor_prolong_the_pause() -> None:
    assert fed(OPEN, SUCCESS, FAILURE, NEUTRAL, SUCCESS, SUCCESS, now=9) == OPEN


def test_time_outs_of_requests_from_before_do_not_open_it_again() -> None:
    assert HALF_OPEN.after(FAILURE, 11, RULES, begun=9.9) == HALF_OPEN
    closed = fed(HALF_OPEN, SUCCESS, SUCCESS, now=11)
    for _ in range(RULES.failures):
        closed = closed.after(FAILURE, 12, RULES, begun=-5)
    assert (closed.phase, closed.failures) == (Phase.CLOSED, 0)


def test_a_failed_probe_counts_though_others_closed_it_meanwhile() -> None:
    closed = fed(HALF_OPEN, SUCCESS, SUCCESS, now=11)
    assert closed.after(FAILURE, 12, RULES, begun=10).failures == 1


def test_an_answer_from_before_that_completes_now_shows_that_the_engine_works() -> None:
    assert HALF_OPEN.after(SUCCESS, 11, RULES, begun=-60).successes == 1


def test_an_engine_that_comes_back_is_probed_at_once_whatever_it_was() -> None:
    for breaker in (NEW, fed(NEW, FAILURE), OPEN, HALF_OPEN, fed(HALF_OPEN, SUCCESS)):
        assert breaker.revived(7, RULES) == Breaker(Phase.HALF_OPEN, since=7)


def test_stricter_rules_after_a_reload_take_effect_with_the_next_failure() -> None:
    strict = replace(RULES, failures=1)
    assert fed(NEW, FAILURE, FAILURE).after(FAILURE, 1, strict).phase is Phase.OPEN


def test_a_clock_that_falls_back_a_little_changes_nothing() -> None:
    assert OPEN.at(-0.001, RULES) == OPEN
    assert HALF_OPEN.at(9.999, RULES) == HALF_OPEN


events = st.lists(
    st.tuples(st.sampled_from([*Outcome, "revived", "at"]), st.floats(-0.01, 20), st.booleans())
)
rules = st.builds(Rules, st.integers(1, 6), st.floats(0.01, 30), st.integers(1, 4))


@given(events, rules)
def test_whatever_happens_the_breaker_keeps_its_word(
    steps: list[tuple[Outcome | str, float, bool]], rules: Rules
) -> None:
    breaker, now = NEW, 100.0
    for event, passed, old in steps:
        now += passed
        before = breaker
        if event == "revived":
            breaker = breaker.revived(now, rules)
            assert breaker.phase is Phase.HALF_OPEN
        elif event == "at":
            breaker = breaker.at(now, rules)
            assert breaker == before or (before.phase is Phase.OPEN and breaker.phase is Phase.HALF_OPEN)
            assert breaker.phase is not Phase.OPEN or now < breaker.since + rules.open_s
        else:
            begun = breaker.since - 1 if old else math.inf
            breaker = breaker.after(Outcome(event), now, rules, begun=begun)
            if event == NEUTRAL or before.phase is Phase.OPEN or (event == FAILURE and begun < before.since):
                assert breaker == before
            elif event == FAILURE:
                assert breaker.phase is Phase.OPEN or breaker.failures == before.failures + 1
        match breaker.phase:
            case Phase.CLOSED:
                assert breaker.successes == 0 <= breaker.failures < rules.failures
                assert breaker.allows(10_000, rules)
            case Phase.HALF_OPEN:
                assert breaker.failures == 0 <= breaker.successes < rules.probes
                assert breaker.allows(0, rules)
                assert not breaker.allows(rules.probes, rules)
            case Phase.OPEN:
                assert breaker.failures == breaker.successes == 0
                assert not breaker.allows(0, rules)
