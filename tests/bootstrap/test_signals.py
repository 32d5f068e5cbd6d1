"""How an app ends, in processes of their own: signals are the whole process's."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import asyncio, os, signal, sys
    from swarm_diloco_bootstrap.signals import run_app

    def send(name):
        os.kill(os.getpid(), signal.Signals[name])

    async def app(stop):
        {body}

    sys.exit(run_app(app))
"""


def run(body: str) -> tuple[int, str]:
    program = textwrap.dedent(PROGRAM).format(body=textwrap.indent(textwrap.dedent(body), "    ").lstrip())
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 0), ("SIGHUP", 0)])
def test_the_first_signal_asks_an_app_that_heeds_it(name: str, status: int):
    body = f"""
    stop.heed()
    send({name!r})
    await stop.event.wait()
    print("left")
    """
    assert run(body) == (status, "left\n")


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 0)])
def test_an_app_that_is_still_starting_is_cancelled(name: str, status: int):
    body = f"""
    try:
        send({name!r})
        await asyncio.Event().wait()
    finally:
        print("cleaned up")
    """
    assert run(body) == (status, "cleaned up\n")


def test_the_second_signal_cancels_and_the_third_ends_the_process():
    body = """
    stop.heed()
    send("SIGINT")
    await stop.event.wait()
    print("leaving", flush=True)
    try:
        send("SIGINT")
        await asyncio.Event().wait()
    finally:
        print("cancelled", flush=True)
        send("SIGINT")
        await asyncio.Event().wait()
    """
    assert run(body) == (130, "leaving\ncancelled\n")


def test_an_app_that_is_done_has_status_0_and_its_errors_pass():
    assert run("print('done')") == (0, "done\n")
    assert run("raise OSError('no')")[0] == 1


def test_an_app_whose_reader_is_gone_leaves_as_at_a_hang_up():
    body = """
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    stop.heed()
    stop.say("a round")
    await stop.event.wait()
    stop.say("leaving")
    stop.say("left")
    """
    assert run(body) == (0, "")
