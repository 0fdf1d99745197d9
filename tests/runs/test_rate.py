"""The rate that is shown, against known ones."""

import pytest

from podium.runs.rate import Rate


def test_steady_steps_have_their_rate_whatever_the_pauses_between_reports() -> None:
    rate, now = Rate(now=100.0), 100.0
    for pause in (0.2, 3.0, 0.001, 0.5) * 20:
        now += pause
        rate.add(round(1000 * pause), now)
    assert rate.value == pytest.approx(1000, rel=0.01)


def test_bursts_between_long_pauses_do_not_pull_it_up() -> None:
    """An actor that sends 4,096 steps at once, every 4 s, in two reports that come together."""
    rate = Rate(now=0.0)
    for burst in range(1, 20):
        rate.add(2048, 4.0 * burst)
        rate.add(2048, 4.0 * burst + 0.06)
    assert rate.value == pytest.approx(1024, rel=0.02)
    rate.add(0, 80.0)
    assert rate.value is not None
    assert rate.value < 1024


def test_what_was_collected_before_the_clock_ran_is_forgotten() -> None:
    rate = Rate(now=0.0)
    rate.add(10_000, 0.1)
    for second in range(1, 31):
        rate.add(100, float(second))
    assert rate.value == pytest.approx(100, rel=0.1)


def test_there_is_none_before_there_was_time() -> None:
    rate = Rate(now=5.0)
    assert rate.value is None
    rate.add(640, 5.01)
    rate.add(64, 5.9)
    assert rate.value is None
    rate.add(64, 6.0)
    assert rate.value is not None
