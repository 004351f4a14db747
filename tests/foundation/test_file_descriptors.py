"""Many connections of strangers: there is room for them, and they do not fill the log."""

import asyncio
import errno
import logging
import resource

import pytest

from swarmtrain.foundation import file_descriptors as descriptors


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ((1024, 1 << 20), descriptors.WANTED),
        ((1024, 4096), 4096),
        ((4096, 4096), None),
        ((1 << 20, 1 << 20), None),
        ((1024, resource.RLIM_INFINITY), descriptors.WANTED),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may_be_and_never_lowered(monkeypatch, limits, wanted):
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: made.append(both))
    assert descriptors.raise_limit() == (wanted or limits[0])
    assert made == ([(wanted, limits[1])] if wanted else [])


def test_a_shortage_is_said_once_and_other_errors_as_ever(caplog):
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        descriptors.log_shortage_once(loop)
        for _ in range(1000):
            context = {"message": "accept", "exception": OSError(errno.EMFILE, "Too many")}
            loop.call_exception_handler({**context, "socket": None})
        loop.call_exception_handler({"message": "a bug", "exception": ValueError("x")})

    with caplog.at_level(logging.ERROR):
        asyncio.run(scene())
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == [
        "No new connection can be taken: Too many.", "a bug",
    ]  # fmt: skip
