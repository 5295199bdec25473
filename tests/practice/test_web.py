"""The local page: who may ask for what, and the page in a real browser, live."""

from __future__ import annotations

import http.client
import json
import threading
import time

import pytest

from shardwise import ShardwiseError
from shardwise._practice.exercise import find
from shardwise._practice.folder import Folder
from shardwise._practice.sandbox.host import Limits
from shardwise._practice.web.server import MARKDOWN, LiveWorkshop, Server
from shardwise._practice.workshop import Workshop

from ..explain.browser import start
from ..patience import HANGS


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder, _ = Folder.start(tmp_path_factory.mktemp("web") / "here", None)
    with Workshop(folder, Limits(seconds=HANGS, cpu=600)) as shop:
        live = LiveWorkshop(shop)
        made = Server(live, 0)
        live.start()
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        live.over.set()
        made.shutdown()
        made.server_close()


def ask(server, path: str, method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=HANGS)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_only_this_machine_and_only_with_the_token(server):
    token = server.token
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, f"/{token}/")[0].status == 200
    other = token[:-1] + ("y" if token.endswith("x") else "x")
    for path in ("/", "/overview", f"/{other}/overview", f"/{token}", "//", f"/{token}/../"):
        assert ask(server, path)[0].status == 404, path
    # A name that somebody else's page resolves to this machine.
    assert ask(server, f"/{token}/overview", Host="evil.example")[0].status == 403
    assert (
        ask(server, f"/{token}/overview", Host=f"localhost:{server.server_port}")[0].status == 200
    )


def test_no_path_reaches_the_disk(server):
    base = f"/{server.token}/"
    for path in (
        "exercise/../../../../etc/passwd",
        "exercise/%2e%2e%2fetc%2fpasswd",
        "exercise//etc/passwd",
        "../practice.json",
        ".practice.json",
        "page.js",
        "exercise/",
    ):
        assert ask(server, base + path)[0].status == 404, path


def test_another_page_cannot_ask_for_a_verdict(server):
    base = f"/{server.token}/"
    assert ask(server, base + "judge/shard_map_psum", "POST")[0].status == 403
    assert ask(server, base + "judge/nothing", "POST", **{"X-Practice": "yes"})[0].status == 404
    answer, body = ask(server, base + "hint/row_parallel", "POST", **{"X-Practice": "yes"})
    assert answer.status == 200
    assert len(json.loads(body)["hints"]) == 1


def test_the_answers_are_closed_to_the_outside(server):
    answer, body = ask(server, f"/{server.token}/")
    assert "default-src 'none'" in answer.getheader("Content-Security-Policy")
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    assert answer.getheader("Cache-Control") == "no-store"
    assert b"http://" not in body
    assert b"https://" not in body
    data = json.loads(ask(server, f"/{server.token}/exercise/shard_map_psum")[1])
    assert data["solution"] is None


def test_markdown_is_escaped():
    rendered = MARKDOWN.render("a <b> `x < y` *so*")
    assert rendered == "<p>a &lt;b&gt; <code>x &lt; y</code> <em>so</em></p>\n"
    assert "<script>" not in MARKDOWN.render("<script>1</script>")


class Address:
    """What the browser opens."""

    def __init__(self, url: str):
        self.url = url

    def as_uri(self) -> str:
        return self.url


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = start(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


def wait_for(browser, script: str, seconds: float = HANGS) -> None:
    end = time.monotonic() + seconds
    while not browser.run(script):
        assert time.monotonic() < end, browser.run("document.body.textContent")
        time.sleep(0.2)


def test_the_page_is_live(browser, server):
    folder = server.live.shop.folder
    one = find(folder.exercises, "bytes_of_a_sum")
    browser.open(Address(server.address), 1280)
    wait_for(browser, "document.querySelectorAll('#list button').length === 35")
    heading = "(document.querySelector('#statement h2') || {}).textContent"
    wait_for(browser, f"{heading} === 'A sum over all devices'")
    folder.file(one).write_text(one.wrong["only-one-half"])
    wait_for(browser, "document.getElementById('verdict').textContent.includes('only-one-half')")
    assert browser.run("document.querySelector('#statement h2').textContent") == one.title
    assert "7 * 4_000_000" in browser.run("document.getElementById('source').textContent")
    folder.file(one).write_text(one.solution)
    wait_for(browser, "document.getElementById('verdict').className === 'right'")
    wait_for(browser, "document.getElementById('count').textContent === '1 of 35 done'")
    assert browser.complaints() == []
    assert all(url.startswith(server.address) for url in browser.requests())


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 900, 1280])
def test_the_page_fits(browser, server, width, theme):
    browser.open(Address("about:blank"), width)
    browser.open(Address(server.address + "#row_parallel"), width, theme=theme)
    wait_for(browser, "document.querySelectorAll('#list button').length === 35")
    heading = "(document.querySelector('#statement h2') || {textContent: ''}).textContent"
    wait_for(browser, f"{heading}.includes('its bias')")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'j'}))")
    wait_for(browser, f"{heading}.includes('one psum')")
    assert browser.complaints() == []


def test_the_page_keeps_the_last_verdict_while_it_judges(browser, server, monkeypatch):
    shop = server.live.shop
    one = find(shop.folder.exercises, "bytes_of_a_layer")
    name = next(iter(one.wrong))
    browser.open(Address("about:blank"), 1280)
    browser.open(Address(server.address + f"#{one.name}"), 1280)
    shop.folder.file(one).write_text(one.wrong[name])
    text = "document.getElementById('verdict').textContent"
    wait_for(browser, f"{text}.includes('{name}') && !{text}.includes('Judging')")
    go_on = threading.Event()
    judge = shop.judge.judge

    def slowly(*args, **kwargs):
        go_on.wait(HANGS)
        return judge(*args, **kwargs)

    monkeypatch.setattr(shop.judge, "judge", slowly)
    shop.folder.file(one).write_text(one.solution)
    wait_for(browser, f"{text}.startsWith('Judging {one.file_name}')")
    assert browser.run(f"{text}.includes('The last verdict:') && {text}.includes('{name}')")
    go_on.set()
    wait_for(browser, "document.getElementById('verdict').className === 'right'")
    assert "Judging" not in browser.run(text)
    assert browser.complaints() == []


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), OSError("no")])
def test_a_judge_that_fails_does_not_end_the_judging(server, monkeypatch, error):
    shop = server.live.shop
    one = find(shop.folder.exercises, "bytes_of_a_sum")

    def fail(*args, **kwargs):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(shop.judge, "judge", fail)
        shop.verdicts.pop(one.name, None)
        server.live.ask(one)
        wait_until(lambda: one.name in shop.verdicts)
        assert type(error).__name__ in shop.verdicts[one.name].reason
    shop.verdicts.pop(one.name)
    server.live.ask(one)
    wait_until(lambda: one.name in shop.verdicts and not server.live.waiting)
    assert "failed" not in shop.verdicts[one.name].reason


def test_a_folder_that_cannot_be_read_is_reported_and_looked_at_again(server, monkeypatch):
    def fail():
        raise ShardwiseError("the progress cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(server.live.shop, "changed", fail)
        wait_until(lambda: "cannot be read" in server.live.overview()["problem"])
    wait_until(lambda: not server.live.overview()["problem"])


def wait_until(ready, seconds: float = HANGS) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)
