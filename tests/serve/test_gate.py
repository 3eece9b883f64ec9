"""Who is let in: this computer's own names, no page from elsewhere, and those who know the token."""

from __future__ import annotations

import socket
import sys

import pytest
from serve_client import client_of, refused

from factformer.errors import UserError
from factformer.serve.gate import host_name, is_loopback
from factformer.serve.launch import open_port, require_token, serve

TOKEN = "a-long-secret-0123"


def test_only_names_of_this_computer_are_served_on_a_loopback_address(surrogate):
    with client_of(surrogate) as client:
        assert client.get("/health", headers={"Host": "localhost:9"}).status_code == 200
        assert client.get("/health", headers={"Host": "[::1]:9"}).status_code == 200
        refused(client.get("/health", headers={"Host": "evil.example"}), 403, "this computer alone")
        refused(client.get("/docs", headers={"Host": ""}), 403)


def test_pages_from_elsewhere_are_not_served(surrogate):
    with client_of(surrogate) as client:
        refused(client.post("/predict", headers={"Origin": "http://evil.example"}), 403, "evil.example")
        refused(client.post("/predict", headers={"Origin": "null"}), 403)
        refused(client.post("/predict", headers={"Origin": "http://127.0.0.1:8000"}), 415)


def test_a_token_is_asked_for(surrogate):
    with client_of(surrogate, token=TOKEN, local=False) as client:
        assert client.get("/health").status_code == 200
        refused(client.get("/docs"), 401, "Authorization: Bearer")
        for wrong in ("", TOKEN[:-1], TOKEN + "x", "ü" * 18):
            headers = {"Authorization": f"Bearer {wrong}".encode()}
            refused(client.get("/docs", headers=headers), 401)
        assert client.get("/docs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/docs", headers={"Host": "flows.example", "Authorization": f"bearer {TOKEN}"}).is_success


def test_a_browser_brings_the_token_once(surrogate):
    with client_of(surrogate, token=TOKEN, local=False) as client:
        refused(client.get("/docs?token=wrong"), 401)
        response = client.get(f"/docs?token={TOKEN}", follow_redirects=False)
        assert response.headers["location"] == "/docs"
        cookie = response.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert client.get("/docs").status_code == 200


def test_addresses_that_others_reach_need_a_token():
    for host in ("0.0.0.0", "::", "192.168.1.2", "flows.example", "localhost.example"):
        assert not is_loopback(host)
        with pytest.raises(UserError, match="give a token"):
            serve("no-such-bundle", host=host)
    for host in ("127.0.0.1", "127.0.0.8", "::1", "localhost"):
        assert is_loopback(host)
    assert host_name("[::1]:8000") == "::1"


@pytest.mark.parametrize("token", ["", "short", "with space in it", "with;semicolon", 'with"quotes"', "ümlaut-token"])
def test_tokens_that_a_header_cannot_hold(token):
    with pytest.raises(UserError, match="token"):
        require_token(token, "0.0.0.0", needed=True)


def test_a_port_in_use_is_one_line():
    with open_port("127.0.0.1", 0) as taken, pytest.raises(UserError, match="choose another with --port"):
        open_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="cannot listen"):
        open_port("no-such-host.invalid", 0)


def test_answers_do_not_wait_for_more_bytes():
    """asyncio switches Nagle's algorithm off for sockets that name their protocol; others waited 40 ms an answer."""
    with open_port("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"pip install 'factformer\[serve\]'"):
        serve("no-such-bundle")
