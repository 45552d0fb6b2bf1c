"""The rehearsal of engines that come and go, in its short form; `make rehearse` has the long one."""

from __future__ import annotations

from deploy.rehearsal.engines import Options, rehearse

SHORT = Options(clients=24, pace=0.02, phases=(1, 2, 3))


async def test_engines_are_updated_and_scaled_and_a_pools_only_one_is_replaced_without_loss() -> None:
    said: list[str] = []
    report = await rehearse(SHORT, said.append)
    assert report.faults() == [], (report.tally.failures, said)
    assert [phase.answered >= SHORT.clients for phase in report.phases] == [True] * 3
    # Both of each pool, the one that was taken away, and the only one.
    assert len(report.ended) == 6
    assert report.tally.streamed
    assert report.tally.answered > report.tally.streamed


async def test_engines_that_are_killed_lose_streams_and_the_rehearsal_sees_it() -> None:
    report = await rehearse(Options(clients=24, pace=0.02, abrupt=True, phases=(2,)), lambda _: None)
    assert report.phases[0].lost
    assert report.faults()
