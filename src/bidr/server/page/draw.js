// Answers, the lines between the two rankings, the time, the index. Text goes in as text, never as markup.

import { writeCondition } from "/page/filter.js";

const STEPS = { encode: "encode", candidates: "find by codes", reads: "read vectors", ranking: "rank" };
const SVG = "http://www.w3.org/2000/svg";

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function drawing(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const count = (number) => Math.round(number).toLocaleString("en");
const ms = (value) => (value >= 99.5 ? `${Math.round(value)} ms` : value >= 9.95 ? `${value.toFixed(0)} ms` : `${value.toFixed(value < 0.095 ? 2 : 1)} ms`);

export function drawTime(bar, legend, timings, disk) {
  const total = timings.total || 1;
  const lines = [];
  Object.keys(STEPS).forEach((step, place) => {
    const took = timings[step] ?? 0;
    const piece = bar.children[place] ?? bar.appendChild(element("i", "", step));
    piece.style.flexGrow = took / total;
    piece.title = `${STEPS[step]}: ${ms(took)}`;
    const line = element("li", `${STEPS[step]} `, step);
    line.append(element("b", ms(took)));
    lines.push(line);
  });
  const all = element("li", "in all ", "total");
  all.append(element("b", ms(timings.total)));
  legend.replaceChildren(...lines, all, ...(disk?.vectors ? [element("li", reads(disk), "disk")] : []));
  bar.setAttribute("aria-label", `${ms(timings.total)} in all: ` + Object.keys(STEPS).map((step) => `${STEPS[step]} ${ms(timings[step] ?? 0)}`).join(", "));
}

// Words worth marking: of three letters or more, or numbers.
export const wordsOf = (query) => query.toLowerCase().match(/[\p{L}\p{N}]+/gu)?.filter((word) => word.length > 2 || /\p{N}/u.test(word)) ?? [];
function reads({ vectors, hits, reads: made, bytes }) {
  const share = `${Math.round((100 * hits) / vectors)} % of ${count(vectors)} vectors in memory`;
  return made ? `${share}, ${count(made)} ${made === 1 ? "read" : "reads"} of ${count(bytes / 1000)} kB` : share;
}

// Returns the sentence that says what happened.
export function drawAnswers(list, byCodesList, deep, wanted, found, byCodes) {
  const words = wordsOf(wanted.q);
  const finals = new Map(found.answers.map((one) => [one.id, one.rank]));
  list.replaceChildren(...found.answers.map((one) => card(one, words, move(one))));
  list.querySelector("article")?.setAttribute("tabindex", "0");  // one stop for Tab, the arrows go on from there
  byCodesList.replaceChildren(...(byCodes?.answers ?? []).map((one) => card(one, words, fate(finals.get(one.id), one.rank), finals.has(one.id))));
  const shown = new Set((byCodes?.answers ?? []).map((one) => one.id));
  const from = byCodes ? found.answers.filter((one) => one.candidate_rank && !shown.has(one.id)).sort((a, b) => a.candidate_rank - b.candidate_rank) : [];
  deep.replaceChildren(...(from.length ? [element("p", "further down among the candidates")] : []), ...from.map((one) => {
    const chip = element("span", `${count(one.candidate_rank)}`);
    chip.dataset.id = one.id;
    chip.title = one.title || one.id;
    return chip;
  }));
  return sentence(found.answers, wanted);
}

function sentence(answers, wanted) {
  const { k, n } = wanted;
  if (!answers.length) return [wanted.f ? "No document passes the filter." : "Nothing was found."];
  const raised = answers.filter((one) => one.candidate_rank > k).length;
  const told = [`${answers.length} ${answers.length === 1 ? "answer" : "answers"} from ${count(n)} candidates. `];
  const byWords = answers.filter((one) => !one.candidate_rank).length;
  if (byWords) told.push(element("b", `${byWords} of them`), " came from BM25 alone. ");
  if (raised) told.push(element("b", `${raised} of them`), ` would not have been among the first ${k} by codes alone.`);
  else if (byWords) return told;
  else told.push(answers.every((one) => one.rank === one.candidate_rank) ? "The codes alone had the same order." : "The vectors changed their order.");
  return told;
}

function card(one, words, moved, stays = true) {
  const made = document.getElementById("card").content.cloneNode(true).firstElementChild;
  const article = made.querySelector("article");
  article.dataset.id = one.id;
  article.classList.toggle("gone", !stays);
  made.querySelector(".rank").textContent = one.rank;
  made.querySelector("h3").textContent = one.title || one.id;
  const text = made.querySelector(".text"), whole = one.text ?? "";
  const show = (open) => text.replaceChildren(...marked(open ? whole : beginning(whole, words), words));
  article.addEventListener("open", (event) => show(event.detail));
  show(false);
  made.querySelector(".id").textContent = one.title ? one.id : "";
  made.querySelector(".move").append(...moved, score(one));
  article.addEventListener("read", () => openDocument(one, words));
  return made;
}

// Dot products and sums with BM25 may be of any size: three digits tell them apart.
function score(one) {
  const made = element("output", Math.abs(one.score) < 10 ? one.score.toFixed(3) : one.score.toPrecision(4), "score");
  made.title = "score";
  return made;
}

// The whole document; a click on an attribute filters by it.
function openDocument(one, words) {
  const dialog = document.getElementById("document");
  dialog.querySelector("#document-title").textContent = one.title || one.id;
  dialog.querySelector("#document-id").textContent = one.title ? one.id : "";
  const pairs = Object.entries(one.attributes ?? {}).flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).map((each) => [name, each]));
  dialog.querySelector("#document-attributes").replaceChildren(...pairs.map(([name, value]) => {
    const item = element("li"), button = element("button", writeCondition(name, value), "chip");
    button.type = "button";
    button.title = "Filter by it";
    button.dataset.condition = button.textContent;
    item.append(button);
    return item;
  }));
  dialog.querySelector("#document-text").replaceChildren(...marked(one.text ?? "", words));
  dialog.showModal();
  dialog.querySelector("#document-text").scrollTop = 0;
}

// A few lines: from where the first of the words stands, without lines that only underline.
function beginning(text, words) {
  const plain = text.slice(0, 20000).replace(/[-=~*_^#]{3,}/g, " ").replace(/\s+/g, " ");
  const first = words.length ? plain.search(wholeWords(words)) : -1;
  if (!(first > 150)) return plain.slice(0, 400);
  return `… ${plain.slice(plain.lastIndexOf(" ", first - 50) + 1, first + 350)}`;
}

const wholeWords = (words) => new RegExp(`(?<![\\p{L}\\p{N}_])(?:${words.slice(0, 20).join("|")})(?![\\p{L}\\p{N}_])`, "giu");

function marked(text, words) {
  if (!words.length) return [text];
  const parts = [];
  let end = 0;
  for (const hit of text.slice(0, 20000).matchAll(wholeWords(words))) {
    parts.push(text.slice(end, hit.index), element("mark", hit[0]));
    end = hit.index + hit[0].length;
  }
  return [...parts, text.slice(end)];
}

function move(one) {
  const { rank, candidate_rank: before } = one;
  if (!before) return [element("span", "found by words")];
  const words = element("span", before === rank ? "candidate " : `candidate ${count(before)} → `);
  words.append(element("b", count(rank), before < rank ? "down" : ""));
  return [words, slope(before, rank)];
}

function fate(final, rank) {
  if (final === undefined) {
    const out = element("span", "left out");
    out.title = "not among the final answers";
    return [out];
  }
  const words = element("span", final === rank ? "stays " : "→ ");
  words.append(element("b", final === rank ? "" : count(final), final > rank ? "down" : ""));
  return [words];
}

// From the place among the candidates to the final one; places further down are nearer to each other.
function slope(before, after) {
  const height = (place) => 4 + 28 * Math.min(1, Math.log10(place) / 3);
  const way = after < before ? "up" : after > before ? "down" : "same";
  const [from, to] = [height(before), height(after)];
  const made = drawing("svg", { viewBox: "0 0 72 36", "aria-hidden": "true" });
  made.append(
    drawing("path", { d: `M6 ${from}C36 ${from} 36 ${to} 66 ${to}`, class: way }),
    drawing("circle", { cx: 6, cy: from, r: 3 }),
    drawing("circle", { cx: 66, cy: to, r: 3 }),
  );
  return made;
}

// Lines from where the codes had a document to where it ended up.
export function drawLinks(board, svg) {
  if (!board.classList.contains("two") || board.hidden) return svg.replaceChildren();
  const at = svg.getBoundingClientRect();
  const middle = (one) => {
    const box = one.getBoundingClientRect();
    return box.top - at.top + Math.min(box.height / 2, 56);
  };
  const ends = new Map([...board.querySelectorAll(".right article")].map((one, place) => [one.dataset.id, [middle(one), place]]));
  const lines = [];
  const line = (id, d, kind) => {
    const made = drawing("path", { d, class: kind });
    made.dataset.id = id;
    lines.push(made);
  };
  const width = at.width, bend = width / 2;
  [...board.querySelectorAll(".left article")].forEach((one, place) => {
    const id = one.dataset.id, from = middle(one), end = ends.get(id);
    if (!end) line(id, `M2 ${from}C${bend / 2} ${from} ${bend / 2} ${from + 14} ${bend * 0.8} ${from + 26}`, "out");
    else line(id, curve(from, end[0]), end[1] < place ? "up" : end[1] > place ? "down" : "same");
  });
  for (const chip of board.querySelectorAll(".deep span")) line(chip.dataset.id, curve(middle(chip), ends.get(chip.dataset.id)?.[0] ?? 0), "deep");
  svg.replaceChildren(...lines);
  function curve(from, to) { return `M2 ${from}C${bend} ${from} ${bend} ${to} ${width - 2} ${to}`; }
}

function bytes(value) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let unit = 0, left = value;
  while (left >= 999.5 && unit < units.length - 1) { left /= 1000; unit++; }
  return `${unit && left < 9.95 ? left.toFixed(1) : Math.round(left)} ${units[unit]}`;
}

export function drawIndex(section, served, about) {
  served.textContent = `${about.name} · ${count(about.documents)} documents`;
  const each = about.documents ? about.disk_bytes / about.documents : 0;
  const facts = [
    ["Documents", count(about.documents), about.segments > 1 ? `in ${about.segments} segments` : ""],
    ["RAM a document", `${Number(about.ram_bytes_per_document.toFixed(1))} bytes`, `${bytes(about.ram_bytes)} in all`],
    ["Disk a document", `${count(each)} bytes`, `${bytes(about.disk_bytes)} in all`],
    ["Codes", `${about.code_bytes} bytes`, `searched by ${about.engine}`],
    ["Vectors", count(about.stored_dim), `${about.stored_dim < about.dim ? `of ${count(about.dim)} ` : ""}dimensions, on disk`],
    about.encoder ? ["Encoder", about.encoder, `generation ${about.generation}`]
      : ["Model", about.model ? about.model.slice(0, 8) : "none", `generation ${about.generation}`],
  ];
  section.querySelector("dl").replaceChildren(...facts.map(([name, value, more]) => {
    const fact = element("div"), said = element("dd", value);
    if (more) said.append(element("small", more));
    fact.append(element("dt", name), said);
    return fact;
  }));
  section.hidden = false;
  const curve = about.recall_curve ?? about.outdated_recall_curve;
  section.querySelector("#outdated").hidden = !about.outdated_recall_curve;
  section.querySelector("figure").hidden = !curve?.length;
  if (curve?.length) drawRecall(section.querySelector("figure svg"), curve);
}

function drawRecall(svg, curve) {
  const logs = curve.map(([n]) => Math.log(Math.max(n, 1)));
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const least = Math.min(...curve.map(([, r]) => r)) > 0.85 ? 0.8 : 0;
  const x = (log) => 34 + 276 * (high > low ? (log - low) / (high - low) : 0.5);
  const y = (recall) => 120 - 108 * ((recall - least) / (1 - least));
  const points = curve.map(([n, recall], place) => [x(logs[place]), y(recall), n, recall]);
  const label = (text, at) => Object.assign(drawing("text", at), { textContent: text });
  svg.replaceChildren(
    drawing("path", { d: "M34 12V120H312", class: "axis", fill: "none" }),
    label("1", { x: 28, y: 16, "text-anchor": "end" }),
    label(String(least), { x: 28, y: 123, "text-anchor": "end" }),
    drawing("path", { d: "M" + points.map(([a, b]) => `${a} ${b}`).join("L"), class: "curve" }),
    ...points.map(([cx, cy]) => drawing("circle", { cx, cy, r: 3 })),
    label("candidates for a query", { x: 173, y: 160, "text-anchor": "middle", class: "title" }),
    label("recall", { x: -66, y: 8, transform: "rotate(-90)", "text-anchor": "middle", class: "title" }),
    label(`${Math.round(1000 * points.at(-1)[3]) / 10} %`, { x: points.at(-1)[0], y: points.at(-1)[1] - 8, "text-anchor": "end", class: "last" }),
    ...points.filter((_, place) => place === 0 || place === points.length - 1 || points.length < 6).map(([a, , n]) => label(count(n), { x: a, y: 138, "text-anchor": "middle" })),
  );
  svg.setAttribute("aria-label", points.map(([, , n, recall]) => `${n} candidates: ${recall.toFixed(3)}`).join("; "));
}
