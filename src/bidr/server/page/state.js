// What a search is, in the address: so that it can be shared, and the back button goes back.

const LEAST = 10;

export function readState() {
  const given = new URLSearchParams(location.search);
  const number = (name) => (/^\d{1,7}$/.test(given.get(name) ?? "") ? Math.max(1, Number(given.get(name))) : null);
  const codes = given.get("codes");
  const flag = (value) => (value === null ? null : value === "1");
  return {
    q: given.get("q") ?? "", k: number("k"), n: number("n"), codes: flag(codes), lexical: flag(given.get("bm25")), f: given.get("f") ?? "",
  };
}

// keep: true makes a step that the back button returns from, false replaces the last one, null leaves the address.
// usual: the values of codes and lexical that need not be told.
export function writeState({ q, k, n, codes, lexical, f }, usual, keep) {
  if (keep === null) return;
  const told = new URLSearchParams();
  if (q) {
    told.set("q", q);
    told.set("k", k);
    told.set("n", n);
    if (codes !== usual.codes) told.set("codes", codes ? "1" : "0");
    if (lexical !== usual.lexical) told.set("bm25", lexical ? "1" : "0");
    if (f) told.set("f", f);
  }
  const address = q ? `/?${told}` : "/";
  if (address === location.pathname + location.search) return;
  history[keep ? "pushState" : "replaceState"](null, "", address);
}

// The slider of candidates goes from 10 to all in equal ratios, over numbers that people would choose.
export function candidatesAt(place, most) {
  if (most <= LEAST || place >= 100) return most;
  return Math.min(most, round(LEAST * (most / LEAST) ** (place / 100)));
}

export function placeOf(n, most) {
  if (most <= LEAST || n >= most) return 100;
  const near = Math.log(Math.max(n, LEAST) / LEAST) / Math.log(most / LEAST);
  const guess = Math.round(100 * near);
  const places = [...Array(7).keys()].map((by) => Math.min(100, Math.max(0, guess + by - 3)));
  return places.reduce((best, one) => (off(one) < off(best) ? one : best), guess);
  function off(place) { return Math.abs(candidatesAt(place, most) - n) + Math.abs(place - guess) / 1000; }
}

function round(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
  return Math.round(unit * steps.reduce((best, one) => (Math.abs(one * unit - value) < Math.abs(best * unit - value) ? one : best)));
}
