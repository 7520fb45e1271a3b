"""What goes over a connection: answers in one piece, and all of them."""

import asyncio

from bidr.serve.protocol import Together


class Sent:
    """A transport that remembers what it was told."""

    def __init__(self):
        self.told = []

    def write(self, data):
        self.told.append(data)

    def close(self):
        self.told.append("closed")

    def is_closing(self):
        return "closed" in self.told


def told(*turns):
    """What a transport is told when each of the functions has a turn of the event loop."""
    sent = Sent()

    async def go():
        together = Together(sent, asyncio.get_running_loop())
        for turn in turns:
            turn(together)
            await asyncio.sleep(0)

    asyncio.run(go())
    return sent.told


def head_and_body(together):
    together.write(b"head ")
    together.write(b"body")


def test_head_and_body_go_together():
    assert told(head_and_body, head_and_body) == [b"head body", b"head body"]


def test_a_head_alone_goes_too():
    assert told(lambda together: together.write(b"head")) == [b"head"]


def test_nothing_is_lost_when_it_is_closed():
    def answered(together):
        together.write(b"head")
        together.close()
        assert together.is_closing()

    assert told(answered) == [b"head", "closed"]
