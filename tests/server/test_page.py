"""The page in a real browser: what a person sees and does."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import CHROMIUM, DRIVER, browser
from sample_server import READ, ApiKeys, running
from sample_text_index import words_index

from bidr.index.live.live_reader import LiveIndex

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium: apt-get install chromium chromium-driver"),
]
QUESTION = "clock sings river"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return words_index(tmp_path_factory.mktemp("words"), attributes=True, lexical="prepend")


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
    steps = [re.sub(r" [\d.]+ ms$", "", step) for step in page.texts("#legend li:not(.disk)")]
    assert steps == ["encode", "find by codes", "read vectors", "rank", "in all"]
    (disk,) = page.texts("#legend li.disk")
    assert re.match(r"\d+ % of \d+ vectors in memory", disk)
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


def test_a_filter_is_written_with_fields_that_are_offered(page):
    from selenium.webdriver.common.keys import Keys as Key

    page.open(f"?q={QUESTION.replace(' ', '+')}")
    page.settled(10)
    page.js("document.getElementById('filter').focus()")
    options = "#filter-options:not([hidden]) [role=option]"
    assert page.texts(options) == [
        "evenboolean: false, true",
        "rownumber: 0, 6, 12",
        "thingstring: boat, bridge, candle",
    ]
    page.keys("th", Key.ARROW_DOWN, Key.ENTER)
    assert page.texts(options) == ["=", "!="]
    page.keys(Key.ARROW_DOWN, Key.ENTER, "cl", Key.ARROW_DOWN)
    assert (
        page.js("return document.getElementById('filter').getAttribute('aria-activedescendant')") == "filter-option-0"
    )
    page.keys(Key.TAB, "and row >= 100", Key.ESCAPE)
    assert page.js("return document.getElementById('filter').value") == "thing = clock and row >= 100"
    page.until("return new URLSearchParams(location.search).get('f') === 'thing = clock and row >= 100'")
    page.until("return [...document.querySelectorAll('#answers h3')].every(one => one.textContent.startsWith('clock'))")
    assert all(int(title.split()[-1]) >= 100 for title in page.texts("#answers h3"))
    shared = page.texts("#answers h3")
    page.open(f"?{urlsplit(page.driver.current_url).query}")
    page.until("return document.querySelectorAll('#answers article').length > 0")
    assert page.texts("#answers h3") == shared
    assert page.faults() == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("thnig = clock", 'There is no field "thnig"; did you mean thing? This index has even, row, thing'),
        ("row = many", 'row is a number, "many" is none'),
        ("even > 1", 'even is true or false, not "1"'),
        ("row", "After row an operator is expected: = >= <= > < !="),
        ("row >", "After row > a number is expected"),
        ("row > 3 thing = clock", 'Before "thing" an "and" is expected; put values with spaces in "quotes"'),
        ('{"row": ', "This is not JSON: "),
    ],
)
def test_a_filter_that_cannot_be_read_says_why(page, text, told):
    page.open(f"?q={QUESTION.replace(' ', '+')}")
    page.settled(10)
    page.js(
        "const box = document.getElementById('filter'); box.value = arguments[0];"
        "document.getElementById('form').requestSubmit()",
        text,
    )
    page.until("return document.getElementById('filter-said').textContent")
    assert page.texts("#filter-said")[0].startswith(told.strip())
    assert page.js("return document.getElementById('filter').getAttribute('aria-invalid')") == "true"
    assert page.faults() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("row >= 3 and row < 9", {"and": [{"row": {"gte": 3}}, {"row": {"lt": 9}}]}),
        ("thing = clock|boat", {"thing": {"any": ["clock", "boat"]}}),
        ('thing != "a \\"b\\" c"', {"not": {"thing": 'a "b" c'}}),
        ("even: TRUE, Row = 1e2", {"and": [{"even": True}, {"row": 100}]}),
        ('{"or": [{"row": 1}]}', {"or": [{"row": 1}]}),
    ],
)
def test_filters_become_the_json_of_the_server(page, text, expected):
    page.open()
    found = page.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "import('/page/filter.js').then((filter) => fetch('/v1/index').then((reply) => reply.json())"
        ".then((about) => done(filter.parseFilter(arguments[0], about.attributes))));",
        text,
    )
    assert found == {"filter": expected}


def test_bm25_can_be_switched_on_and_scores_are_shown(page):
    page.open(f"?q={QUESTION.replace(' ', '+')}")
    page.settled(10)
    vectors = page.texts("#answers .score")
    assert all(re.fullmatch(r"-?\d+\.\d{3}", score) for score in vectors)
    page.js("document.getElementById('lexical').click()")
    page.until("return document.getElementById('by-vectors').textContent === 'By vectors and BM25'")
    assert page.texts("#answers .score") != vectors
    assert page.address()["bm25"] == ["1"]


def test_the_empty_page_offers_titles_as_queries(page):
    page.open()
    examples = page.texts("#examples button")
    assert 1 <= len(examples) <= 4
    page.js("document.querySelector('#examples button').click()")
    page.settled(10)
    assert page.address()["q"] == [examples[0]]
    assert page.js("return document.getElementById('examples').hidden")


def test_whole_words_are_marked(page):
    page.open("?q=bridge+sing+river")
    page.settled(10)
    assert {mark.lower() for mark in page.texts("#answers mark")} <= {"bridge", "river"}, "sing is not sings"


def test_a_document_is_read_in_a_view_of_its_own(page):
    from selenium.webdriver.common.keys import Keys as Key

    page.open(f"?q={QUESTION.replace(' ', '+')}")
    page.settled(10)
    page.js("document.querySelector('#answers article').focus()")
    page.keys("o")
    assert page.js("return document.getElementById('document').open")
    (title,), (text,) = page.texts("#document-title"), page.texts("#document-text")
    assert title == page.texts("#answers h3")[0]
    assert text.count("Nobody has seen") == 3
    page.keys(Key.ESCAPE)
    assert not page.js("return document.getElementById('document').open")
    page.js("const one = document.querySelector('#answers article'); one.click(); one.querySelector('.read').click()")
    page.js("document.querySelector('#document-attributes button').click()")
    page.until("return new URLSearchParams(location.search).get('f')")
    assert page.address()["f"] == [f"thing = {title.split()[0]}"]


def test_a_recall_curve_says_what_its_axes_are_and_when_it_is_outdated(driver, index, tmp_path):
    import shutil

    from bidr.search.evaluation import EVALUATED
    from bidr.utils.files import write_json

    shutil.copytree(index, tmp_path / "index")
    name, digest = (tmp_path / "index" / "CURRENT").read_text().split()
    with LiveIndex.open(tmp_path / "index") as reader:
        model = reader.latest().state.model.fingerprint
    for generation, hidden in (([name, digest], True), ([name, "0" * 32], False)):
        curve = {"model": model, "generation": generation, "recall_curve": [[1, 0.5], [10, 0.8], [100, 0.95]]}
        write_json(tmp_path / "index" / EVALUATED, curve)
        with running(tmp_path / "index", tmp_path / "log") as server:
            page = SearchPage(driver, server.url).open()
            assert page.texts("#recall-curve .title") == ["candidates for a query", "recall"]
            assert page.js("return document.getElementById('outdated').hidden") is hidden


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
        asked = f"?q={QUESTION.replace(' ', '+')}"
        for query in ("", asked, f"{asked}&f=row+>+3&bm25=1", f"{asked}&codes=1"):
            page.open(query)
            if query:
                page.settled(10)
            assert page.js("return document.documentElement.scrollWidth") <= 360
        small = (
            "return [...document.querySelectorAll('input[type=range], button')]"
            ".filter(one => one.offsetHeight && one.offsetHeight < 24)"
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
