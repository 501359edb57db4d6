"""`crl serve`: a trained agent behind an OpenAI-style API. `crl bank serve`: its bank for other agents, over MCP."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crl.cli.bank_transfer import opened_bank
from crl.cli.shared import AgentArgument, say, shown
from crl.errors import BadInput
from crl.paths import short

if TYPE_CHECKING:
    from crl.gateway.server import Gateway

MOST_OPEN = 256
"""Calls that wait or are answered at one time; more are refused."""
HOSTS = "CRL_HOSTS"
"""Other names of this machine, as `make ui` reads them."""
RoundOption = Annotated[int | None, typer.Option(min=0, help="The agent after this round; default the latest.")]
BestOption = Annotated[bool, typer.Option("--best", help="The agent of the best evaluated round.")]
PortOption = Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")]


def serve(
    agent: AgentArgument,
    round: RoundOption = None,
    best: BestOption = False,
    host: Annotated[str, typer.Option(help="Address to listen on. Others than loopback need a key.")] = "127.0.0.1",
    port: PortOption = 8000,
    key: Annotated[
        str | None, typer.Option(envvar="CRL_KEY", help="What clients send as their API key; better in the variable.")
    ] = None,
    vllm: Annotated[
        str | None, typer.Option(metavar="URL", help="A vLLM server with the exported model; default: sampled here.")
    ] = None,
    no_bank: Annotated[bool, typer.Option("--no-bank", help="Show no experience.")] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep conversations, for `crl bank build --from FOLDER`.")
    ] = None,
    free_share: Annotated[
        float, typer.Option(min=0, max=1, help="With --record: share of conversations without experience.")
    ] = 0.0,
    batch: Annotated[int | None, typer.Option(min=1, max=1024, help="Calls sampled at one time.")] = None,
) -> None:
    """Serve a trained agent behind an OpenAI-style API. With its bank.

    Calls name the model `actor`, or `actor/FAMILY` where there are several families. Ctrl-C ends it.
    """
    from crl.gateway.server import Client, is_loopback
    from crl.serve.answering import Answering
    from crl.serve.own_model import own_model
    from crl.serve.recording import Recording
    from crl.serve.source import open_agent
    from crl.serve.upstream import Upstream

    if free_share and (record is None or no_bank):
        raise BadInput(
            "--free-share has no effect here: nothing is recorded, or no bank is shown",
            expected="--record FOLDER, and a bank",
        )
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key):
        raise BadInput("the key cannot be sent in a header", expected="printable ASCII without spaces around it")
    if not key and not is_loopback(host):
        key = f"crl-{secrets.token_urlsafe(32)}"
        say(f"key: {key}")
    with open_agent(agent, round, best=best) as opened, ended_by_signal():
        recording = None if record is None else Recording(record)
        answering = Answering(opened, bank=not no_bank, free_share=free_share, recording=recording)
        gateway = _listening(host, port)
        model = Upstream(vllm, answering) if vllm is not None else own_model(opened, answering, batch)
        posts = {} if recording is None else {"feedback": recording.feedback}
        client = Client("", key or "", model.submit, answering.models, served=True, posts=posts, most_open=MOST_OPEN)
        gateway.serve(client)
        with gateway:
            say(f"{opened.name}, round {opened.round}: {', '.join(answering.models)}")
            say(f"base_url: {gateway.url(client)}   (Ctrl-C ends it)")
            if recording is not None:
                say(f"recorded in {shown(recording.path)}")
            model.run()
    say("ended")


def serve_bank(
    bank: Annotated[str, typer.Argument(metavar="RUN|DIR", help="A run, or a folder of `crl export`.")],
    round: Annotated[int | None, typer.Option(min=0, help="For a run: the bank after this round.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Answer over HTTP on this port of loopback; default stdio.")
    ] = None,
) -> None:
    """Offer a bank to other agents over MCP. Search, where an experience comes from, what came of its uses.

    An agent starts this command itself and speaks with it over stdio; with --port it listens on loopback.
    """
    from crl.gateway.server import LOOPBACK
    from crl.serve.bank_tools import BankTools, bank_server, embedder_of, run_http

    opened = opened_bank(bank, round)
    server = bank_server(BankTools(opened, lambda: embedder_of(opened, _query_instruction(bank))))
    with ended_by_signal():
        if port is None:
            server.run("stdio")
            return
        try:
            run_http(server, port, lambda address: say(f"MCP at {address}   (Ctrl-C ends it)"))
        except OSError as error:
            raise _taken(LOOPBACK, port, error) from None


def _query_instruction(name: str) -> str | None:
    """What precedes queries of the run, or the exported agent, whose bank it is; None: as the embedder has it."""
    from crl.run.directory import RunDirectory
    from crl.run.find import find_run
    from crl.serve.source import open_agent

    with suppress(BadInput):
        use = RunDirectory.open(find_run(name)).method.recipe.embedder()
        return None if use is None else use.query_instruction
    with suppress(BadInput):  # a bank without its agent says nothing of queries
        retrieval = open_agent(name).retrieval
        return None if retrieval is None else retrieval.query_instruction
    return None


def _listening(host: str, port: int) -> Gateway:
    """Raises BadInput where the address cannot be had."""
    from crl.gateway.server import Gateway

    names = [name.strip() for name in os.environ.get(HOSTS, "").split(",") if name.strip()]
    try:
        return Gateway(host=host, port=port, names=names)
    except OSError as error:
        raise _taken(host, port, error) from None


def _taken(host: str, port: int, error: OSError) -> BadInput:
    return BadInput(
        f"nothing can listen on {short(host)}, port {port}: {error.strerror or error}",
        expected="an address of this machine, and a free port",
        next_step="name another: --port",
    )


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Ctrl-C, or a service manager's signal, ends the block and nothing else."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
