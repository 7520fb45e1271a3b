// The page: reads its state from the address, asks the server, draws what comes back.
import { Trouble, ask, describeIndex, setKey } from "/page/server.js";
import { drawAnswers, drawIndex, drawLinks, drawTime } from "/page/draw.js";
import { makeFilterBox, parseFilter } from "/page/filter.js";
import { candidatesAt, placeOf, readState, writeState } from "/page/state.js";

const $ = (id) => document.getElementById(id);
const form = $("form"), box = $("q"), board = $("board");
const wide = matchMedia("(min-width: 44.01rem)");
const BM25_CANDIDATES = 100, BM25_WEIGHT = 0.5;  // where no model recommends others
let about = null;           // what GET /v1/index says
let shown = null;           // the last answers
let asking = null;          // what is under way
let timer = 0, retryTimer = 0;

function settings() {
  const k = Number($("k").value);
  const n = Math.max(candidatesAt(Number($("n").value), most()), k), lexical = $("lexical").checked, f = $("filter").value.trim();
  const bm25 = !about?.words ? {} : !lexical ? { lexical: 0 }
    : { lexical: Math.min(about.lexical || BM25_CANDIDATES, most()), lexical_weight: about.lexical_weight || BM25_WEIGHT };
  return { q: box.value.trim(), k, n, codes: $("codes").checked, lexical, bm25, f, ...parseFilter(f, about?.attributes ?? []) };
}

const usual = () => ({ codes: wide.matches, lexical: usesBm25() });
const usesBm25 = () => Boolean(about?.words && about.lexical);

const most = () => Math.max(1, Math.min(about?.limits?.candidates ?? 10000, about?.documents || 10000));

function tellSettings() {
  const { k, n } = settings();
  $("k-shown").textContent = k;
  $("n-shown").textContent = n.toLocaleString("en");
  $("n").setAttribute("aria-valuetext", `${n} candidates`);
}

function later(wait) {
  clearTimeout(timer);
  timer = setTimeout(() => search(false), wait);
}

async function search(keep) {
  clearTimeout(timer);
  clearTimeout(retryTimer);
  const wanted = settings();
  writeState(wanted, usual(), keep);
  asking?.abort();
  $("filter").setAttribute("aria-invalid", String(Boolean(wanted.error)));
  $("filter-said").textContent = wanted.error ?? "";
  if (!wanted.q) return clear();
  if (wanted.error) {
    asking = null;
    board.classList.toggle("stale", Boolean(shown));
    return;
  }
  const longest = about?.limits?.characters;
  if (wanted.q.length > longest) {
    asking = null;
    return showTrouble(new Trouble("The question is too long",
      `It has ${wanted.q.length.toLocaleString("en")} characters; this server reads up to ${longest.toLocaleString("en")}.`));
  }
  const mine = asking = new AbortController();
  board.classList.add("stale");
  try {
    const [found, byCodes] = await Promise.all([
      ask(wanted, mine.signal),
      wanted.codes ? ask({ ...wanted, codesOnly: true }, mine.signal) : null,
    ]);
    if (mine !== asking) return;
    shown = { wanted, found, byCodes };
    hideTrouble();
    draw();
  } catch (error) {
    if (error.name !== "AbortError" && mine === asking) showTrouble(error);
  } finally {
    if (mine === asking) board.classList.remove("stale");
  }
}

function draw() {
  const { wanted, found, byCodes } = shown;
  document.title = `${wanted.q} · bidr`;
  board.hidden = false;
  board.classList.toggle("two", Boolean(byCodes));
  $("by-vectors").textContent = wanted.lexical && about.words ? "By vectors and BM25" : "By vectors";
  $("took").hidden = false;
  $("examples").hidden = true;
  drawTime($("bar"), $("legend"), found.timings, found.disk);
  $("said").replaceChildren(...drawAnswers($("answers"), $("by-codes"), $("deep"), wanted, found, byCodes));
  drawLinks(board, $("links"));
}

function clear() {
  asking = shown = null;
  board.hidden = $("took").hidden = true;
  board.classList.remove("stale");
  $("said").textContent = "";
  $("examples").hidden = !about?.texts || !about.examples?.length;
  document.title = about ? `${about.name} · bidr` : "bidr";
  hideTrouble();
}

function hideTrouble() {
  $("trouble").hidden = true;
  $("trouble").replaceChildren();
}

function showTrouble(error) {
  const told = error instanceof Trouble ? error : new Trouble("Something went wrong on this page", String(error));
  const part = (name, text, kind = "") => Object.assign(document.createElement(name), { textContent: text, className: kind });
  const pieces = [part("h2", told.title), part("p", told.message)];
  if (told.more) pieces.push(part("p", told.more, "more"));
  if (told.needsKey) pieces.push(keyForm());
  else if (told.again) pieces.push(retryLine(told.wait));
  $("trouble").replaceChildren(...pieces);
  $("trouble").hidden = false;
  $("said").textContent = shown ? "The answers below are the last ones." : "";
}

function keyForm() {
  const line = document.createElement("form");
  const input = Object.assign(document.createElement("input"), { type: "password", placeholder: "Key", autocomplete: "off" });
  input.setAttribute("aria-label", "Key");
  line.append(input, Object.assign(document.createElement("button"), { textContent: "Use it", className: "button" }));
  line.addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(input.value.trim());
    begin();
  });
  return line;
}

function retryLine(wait) {
  const line = Object.assign(document.createElement("p"), { className: "again" });
  const button = Object.assign(document.createElement("button"), { type: "button", className: "button" });
  const again = () => (about ? search(false) : begin());
  button.addEventListener("click", again);
  line.append(button);
  let left = wait;
  const tick = () => {
    button.textContent = left ? `Try again (${left})` : "Try again";
    if (!wait) return;
    if (left-- > 0) retryTimer = setTimeout(tick, 1000);
    else again();
  };
  clearTimeout(retryTimer);
  tick();
  return line;
}

function take(state) {
  box.value = state.q;
  $("k").max = Math.max(1, Math.min(50, about.limits?.k ?? 50, about.documents || 50));
  $("k").value = state.k ?? 10;
  $("n").value = placeOf(state.n ?? about.candidates ?? 200, most());
  $("codes").checked = state.codes ?? wide.matches;
  $("lexical-switch").hidden = !about.words;
  $("lexical").checked = state.lexical ?? usesBm25();
  $("narrow").hidden = !about.attributes?.length;
  $("filter").value = state.f;
  $("filter").placeholder = exampleFilter(about.attributes ?? []);
  tellSettings();
}

function exampleFilter(fields) {
  const field = fields.find((one) => one.values.length) ?? fields[0];
  if (!field) return "";
  return `Filter, such as: ${field.name} ${field.kind === "number" ? ">=" : "="} ${field.values[0] ?? "value"}`;
}

function drawExamples() {
  const buttons = (about.examples ?? []).map((text) => Object.assign(document.createElement("button"), { type: "button", className: "chip", textContent: text }));
  $("examples").replaceChildren(Object.assign(document.createElement("span"), { textContent: "Try" }), ...buttons);
}

async function begin() {
  clearTimeout(retryTimer);
  try {
    about = await describeIndex();
  } catch (error) {
    return showTrouble(error);
  }
  hideTrouble();
  drawIndex($("index"), $("served"), about);
  take(readState());
  drawExamples();
  if (!about.texts) {
    box.disabled = true;
    return showTrouble(new Trouble("This index takes vectors, not words",
      "It was built from vectors, so there is no encoder here that could read a question.",
      "Start the server with the encoder that made them (bidr serve --encoder), or search it from a program: POST /v1/search with \"vectors\", or bidr.Client(...).search_vectors(...)."));
  }
  if (box.value) search(false);
  else {
    clear();
    if (wide.matches) box.focus();
  }
}

// ---- keyboard and the rest of what a person does

const cards = () => [...$("answers").querySelectorAll("article")];

function step(by) {
  const all = cards(), at = all.indexOf(document.activeElement);
  if (!all.length) return;
  if (at + by < 0) return box.focus();
  const next = all[Math.min(at < 0 ? 0 : at + by, all.length - 1)];
  for (const one of all) one.tabIndex = one === next ? 0 : -1;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function open(card) {
  const opening = card.getAttribute("aria-expanded") !== "true";
  card.setAttribute("aria-expanded", String(opening));
  card.dispatchEvent(new CustomEvent("open", { detail: opening }));
  drawLinks(board, $("links"));
}

document.addEventListener("keydown", (event) => {
  if ($("document").open) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = document.activeElement, typing = at.matches("input, textarea, select") && at !== box;
  if (event.key === "/" && at !== box && !typing) box.focus(), box.select();
  else if (event.key === "Escape" && at === box) { box.value = ""; search(true); }
  else if (event.key === "Escape") box.focus(), box.select();
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !typing) step(event.key === "ArrowDown" ? 1 : -1);
  else if ((event.key === "Enter" || event.key === " ") && at.matches("article")) open(at);
  else if (event.key === "o" && at.matches("article")) at.dispatchEvent(new CustomEvent("read"));
  else return;
  event.preventDefault();
});

board.addEventListener("click", (event) => {
  const card = event.target.closest("article");
  if (event.target.closest(".read")) return card.dispatchEvent(new CustomEvent("read"));
  if (card && !String(getSelection())) open(card);
});

function aim(event) {
  const id = event.type === "mouseout" || event.type === "focusout" ? null : event.target.closest("article")?.dataset.id;
  $("links").classList.toggle("aimed", id !== undefined && id !== null);
  for (const one of board.querySelectorAll("[data-id]")) one.classList.toggle("aim", id != null && one.dataset.id === id);
}
for (const kind of ["mouseover", "mouseout", "focusin", "focusout"]) board.addEventListener(kind, aim);

form.addEventListener("submit", (event) => { event.preventDefault(); search(true); });
box.addEventListener("input", () => later(300));
for (const name of ["n", "k"]) $(name).addEventListener("input", () => { tellSettings(); later(150); });
for (const name of ["codes", "lexical"]) $(name).addEventListener("change", () => search(true));
makeFilterBox($("filter"), $("filter-options"), () => about?.attributes ?? [], () => later(300));
$("examples").addEventListener("click", (event) => {
  if (!event.target.matches("button")) return;
  box.value = event.target.textContent;
  search(true);
});
$("document-close").addEventListener("click", () => $("document").close());
$("document").addEventListener("click", (event) => {
  if (event.target === $("document")) return $("document").close();  // the backdrop
  const condition = event.target.dataset.condition;
  if (!condition) return;
  $("document").close();
  $("filter").value = condition;
  search(true);
});
addEventListener("popstate", () => { if (about) { take(readState()); search(null); } });
new ResizeObserver(() => drawLinks(board, $("links"))).observe(board);

$("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = !isDark();
  root.dataset.theme = dark ? "dark" : "light";
  try { localStorage.setItem("bidr-theme", root.dataset.theme); } catch { /* it holds for this page then */ }
  tellTheme();
});
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
function tellTheme() {
  $("theme").setAttribute("aria-pressed", String(isDark()));
  $("theme-icon").setAttribute("href", `/page/icon.svg#${isDark() ? "sun" : "moon"}`);
}
system.addEventListener("change", tellTheme);
tellTheme();
begin();
