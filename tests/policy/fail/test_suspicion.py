from __future__ import annotations

from gateway.policy.fail.suspicion import Suspicion

ONE = Suspicion().after_refusal("a", 10.0)


def test_another_engine_is_asked_at_most_once_a_second_and_one_at_a_time() -> None:
    assert ONE.may_ask(10.0)
    asked = ONE.asked(10.0)
    assert not asked.may_ask(20.0)
    heard = asked.heard(other_answered=False)
    assert not heard.may_ask(10.9)
    assert heard.may_ask(11.0)
    assert not heard.after_success().may_ask(10.9)


def test_an_engine_is_at_fault_once_another_answered_what_it_refused() -> None:
    confirmed = ONE.asked(10.0).heard(other_answered=True)
    assert confirmed.is_engines(5, peers_succeeded_at=0.0)
    assert not confirmed.may_ask(99.0)
    assert not confirmed.after_success().is_engines(5, peers_succeeded_at=0.0)
    assert confirmed.heard(other_answered=False).is_engines(5, peers_succeeded_at=0.0)


def test_many_refusals_are_its_fault_where_two_clients_meet_them_and_others_succeed() -> None:
    of_one, of_two = Suspicion(), Suspicion()
    for number in range(5):
        of_one = of_one.after_refusal("a", 10.0 + number)
        of_two = of_two.after_refusal("ab"[number % 2], 10.0 + number)
    assert not of_one.is_engines(5, peers_succeeded_at=11.0)
    assert of_two.is_engines(5, peers_succeeded_at=11.0)
    assert not of_two.is_engines(5, peers_succeeded_at=9.0)
    assert not of_two.is_engines(6, peers_succeeded_at=11.0)


def test_it_rests_while_another_is_asked_unless_it_refused_only_once() -> None:
    assert not ONE.asked(10.0).must_rest
    again = ONE.asked(10.0).after_refusal("a", 10.1)
    assert again.must_rest
    assert not again.heard(other_answered=True).must_rest


def test_of_many_clients_two_are_remembered() -> None:
    many = Suspicion()
    for number in range(100):
        many = many.after_refusal(str(number), 10.0)
    assert len(many.clients) == 2
