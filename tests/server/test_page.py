"""The page in a real browser: what a person sees and does."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import CHROMIUM, DRIVER, browser
from sample_server import READ, ApiKeys, running
from sample_text_index import words_index

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium: apt-get install chromium chromium-driver"),
]
QUESTION = "clock sings river"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return words_index(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def server(index, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log"
    with running(index, log, "--limit.characters=60", "--limit.candidates=300") as found:
        yield found


class SearchPage:
    """The page, and what tests do with it."""

    def __init__(self, driver, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, query: str = "") -> "SearchPage":
        self.driver.get(f"{self.url}/{query}")
        self.until("return !document.getElementById('index').hidden || !document.getElementById('trouble').hidden")
        return self

    def js(self, script: str, *given):
        return self.driver.execute_script(script, *given)

    def until(self, script: str, seconds: float = 20):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, 0.05).until(lambda driver: driver.execute_script(script))

    def keys(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def settled(self, count: int) -> None:
        self.until(
            "const board = document.getElementById('board');"
            "return !board.hidden && !board.classList.contains('stale') &&"
            f" document.querySelectorAll('#answers article').length === {count}"
        )

    def texts(self, selector: str) -> list[str]:
        found = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent.trim())"
        return self.js(found, selector)

    def address(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.driver.current_url).query)

    def slide(self, name: str, value: int) -> None:
        self.js(
            "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
            "one.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
            value,
        )

    def faults(self) -> list[str]:
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def driver():
    with browser() as found:
        yield found


@pytest.fixture
def page(driver, server):
    return SearchPage(driver, server.url)


def test_a_search_shows_where_each_answer_was_among_the_candidates(page):
    page.open()
    assert page.js("return document.activeElement.id") == "q"
    page.keys(QUESTION, "\n")
    page.settled(10)
    moves = page.texts("#answers .move span")
    assert len(moves) == 10
    assert all(re.fullmatch(r"candidate (\d+ → )?\d+", move) for move in moves)
    assert any("→" in move for move in moves), "codes so coarse do not rank as the vectors do"
    assert re.match(r"10 answers from \d+ candidates\.", page.texts("#said")[0])
    assert len(page.texts("#by-codes article")) == 10
    lines = page.js("return document.querySelectorAll('#links path').length")
    assert lines == 10 + len(page.texts("#deep span")), (
        "a line for each of the codes' answers, and for each from deeper"
    )
    assert {mark.lower() for mark in page.texts("#answers mark")} & set(QUESTION.split())
    shares = page.js("return [...document.querySelectorAll('#bar i')].map(one => Number(one.style.flexGrow))")
    assert sum(shares) == pytest.approx(1, abs=0.01)
    steps = [re.sub(r" [\d.]+ ms$", "", step) for step in page.texts("#legend li")]
    assert steps == ["encode", "find by codes", "read vectors", "rank", "in all"]
    facts = dict(zip(page.texts("#facts dt"), page.texts("#facts dd"), strict=True))
    assert facts["Documents"] == "400"
    assert facts["Codes"].startswith("2 bytes")
    assert page.faults() == []


def test_sliders_search_again_and_the_address_can_be_shared(page):
    page.open(f"?q={QUESTION.replace(' ', '+')}")
    page.settled(10)
    page.slide("k", 4)
    page.settled(4)
    page.slide("n", 100)
    page.until("return document.getElementById('said').textContent.includes('from 300 candidates')")
    assert page.address() == {"q": [QUESTION], "k": ["4"], "n": ["300"]}
    shared = page.texts("#answers h3")
    page.open(f"?{urlsplit(page.driver.current_url).query}")
    page.settled(4)
    assert page.texts("#answers h3") == shared
    assert page.texts("#n-shown") == ["300"]


def test_the_code_ranking_can_be_hidden_and_the_back_button_works(page):
    page.open(f"?q={QUESTION.replace(' ', '+')}&codes=0")
    page.settled(10)
    assert page.texts("#by-codes article") == []
    assert page.js("return document.querySelectorAll('#answers .move svg').length") == 10
    page.js("document.getElementById('codes').click()")
    page.until("return document.querySelectorAll('#by-codes article').length === 10")
    assert "codes" not in page.address()
    page.driver.back()
    page.until("return document.querySelectorAll('#by-codes article').length === 0")


def test_the_keyboard_is_enough(page):
    from selenium.webdriver.common.keys import Keys as Key

    page.open(f"?q={QUESTION.replace(' ', '+')}")
    page.settled(10)
    page.js("document.activeElement.blur()")
    page.keys("/")
    assert page.js("return document.activeElement.id") == "q"
    page.keys(Key.ARROW_DOWN, Key.ARROW_DOWN)
    second = "document.querySelectorAll('#answers article')[1]"
    assert page.js(f"return document.activeElement === {second}")
    assert page.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keys(Key.ENTER)
    assert page.js(f"return {second}.getAttribute('aria-expanded')") == "true"
    assert page.js(f"return {second}.querySelector('.text').textContent").count("Nobody has seen") == 3
    page.keys(Key.ENTER, Key.ARROW_UP, Key.ARROW_UP)
    assert page.js("return document.activeElement.id") == "q"
    page.keys(Key.ARROW_DOWN, Key.ESCAPE)
    assert page.js("return document.activeElement.id") == "q"
    page.keys(Key.ESCAPE)
    page.until("return document.getElementById('board').hidden")
    assert page.address() == {}


def test_errors_are_shown_in_plain_words(page):
    page.open(f"?q={'very+' * 20}long")
    page.until("return !document.getElementById('trouble').hidden")
    (told,) = page.texts("#trouble")
    assert told == "The question is too longIt has 104 characters; this server reads up to 60."
    assert page.js("return document.getElementById('trouble').getAttribute('role')") == "alert"
    page.js("document.getElementById('q').value = 'clock'; document.getElementById('form').requestSubmit()")
    page.settled(10)
    assert page.js("return document.getElementById('trouble').hidden")
    refusal = '{"error": {"message": "candidates", "given": "7", "expected": "1 to 5", "hint": "ask for fewer"}}'
    page.js(
        "window.fetch = () => Promise.resolve(new Response(arguments[0], {status: 422}));"
        "document.getElementById('form').requestSubmit()",
        refusal,
    )
    page.until("return !document.getElementById('trouble').hidden")
    assert page.texts("#trouble p") == ["Candidates", "Given: 7. Expected: 1 to 5. Ask for fewer."]


def test_the_page_explains_an_unreachable_and_an_overloaded_server(page):
    page.open(f"?q={QUESTION.replace(' ', '+')}")
    page.settled(10)
    page.js("window.real = fetch; window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    page.js("document.getElementById('form').requestSubmit()")
    page.until("return document.getElementById('trouble').textContent.includes('The server does not answer')")
    assert page.texts("#said") == ["The answers below are the last ones."]
    busy = "new Response('{\"error\": {}}', {status: 503, headers: {'retry-after': '1'}})"
    page.js(f"window.fetch = () => {{ window.fetch = window.real; return Promise.resolve({busy}) }}")
    page.js("document.querySelector('#trouble button').click()")
    page.until("return document.getElementById('trouble').textContent.includes('The server is busy')")
    page.until("return document.getElementById('trouble').hidden")
    page.settled(10)


def test_texts_are_never_markup(page):
    page.open("?q=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")
    page.settled(10)
    assert page.js("return document.querySelectorAll('main img').length") == 0


def test_the_page_asks_for_a_key_if_the_server_needs_one(driver, index, tmp_path):
    with running(index, tmp_path / "log", keys=ApiKeys(read=READ)) as found:
        page = SearchPage(driver, found.url).open(f"?q={QUESTION.replace(' ', '+')}")
        assert page.texts("#trouble h2") == ["This index needs a key"]
        page.js(
            "const form = document.querySelector('#trouble form'); form.querySelector('input').value = arguments[0];"
            "form.requestSubmit()",
            READ,
        )
        page.settled(10)


def test_a_phone_shows_everything_without_scrolling_sideways(server):
    with browser(360, 740) as phone:
        page = SearchPage(phone, server.url)
        for query in ("", f"?q={QUESTION.replace(' ', '+')}", f"?q={QUESTION.replace(' ', '+')}&codes=1"):
            page.open(query)
            if query:
                page.settled(10)
            assert page.js("return document.documentElement.scrollWidth") <= 360
        small = (
            "return [...document.querySelectorAll('input[type=range], button')].filter(one => one.offsetHeight < 24)"
        )
        assert page.js(f"{small}.length") == 0, "fingers are not mice"
        assert len(page.texts("#by-codes article")) == 10


def test_the_dark_is_dark_by_the_system_or_by_the_switch(server):
    def brightness(page: SearchPage) -> float:
        colour = page.js("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    with browser(dark=True) as found:
        page = SearchPage(found, server.url).open()
        assert brightness(page) < 60
        assert page.js("return document.getElementById('theme').getAttribute('aria-pressed')") == "true"
        page.js("document.getElementById('theme').click()")
        assert brightness(page) > 200
        page.open()
        assert brightness(page) > 200, "what was chosen is kept"


def test_nothing_comes_from_another_host(page):
    page.open(f"?q={QUESTION.replace(' ', '+')}")
    page.settled(10)
    hosts = page.js("return performance.getEntriesByType('resource').map(one => new URL(one.name).origin)")
    assert set(hosts) == {page.url}
