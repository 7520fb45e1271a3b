// What the page asks of the server, and what a person is told when it does not answer.

let key = sessionStorage_("bidr-key");

export class Trouble extends Error {
  constructor(title, message, more = "", { again = false, wait = 0, needsKey = false } = {}) {
    super(message);
    Object.assign(this, { title, more, again, wait, needsKey });
  }
}

export function setKey(given) {
  key = given;
  try { sessionStorage.setItem("bidr-key", given); } catch { /* it holds for this page then */ }
}

function sessionStorage_(name) {
  try { return sessionStorage.getItem(name); } catch { return null; }
}

export const describeIndex = () => fetched("/v1/index");

// bm25: {lexical, lexical_weight}, for an index with words; codes alone have no use for it.
export async function ask({ q, k, n, filter, bm25, codesOnly = false }, signal) {
  const request = { texts: [q], k, candidates: n, codes_only: codesOnly, ...(codesOnly ? {} : bm25), ...(filter ? { filter } : {}) };
  const body = JSON.stringify(request);
  const reply = await fetched("/v1/search", { method: "POST", body, signal, headers: { "content-type": "application/json" } });
  return reply.results[0];
}

async function fetched(path, options = {}) {
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer", "It may have been stopped, or the connection is gone.",
      "Is bidr serve still running?", { again: true });
  }
  let body = null;
  try { body = await response.json(); } catch (error) { if (error.name === "AbortError") throw error; }
  if (response.ok && body) return body;
  throw told(response, body?.error ?? {});
}

function told(response, { message, given, expected, hint }) {
  const status = response.status;
  const detail = [given && `Given: ${given}.`, expected && `Expected: ${expected}.`, hint && `${sentence(hint)}.`].filter(Boolean).join(" ");
  if (status === 401) return new Trouble("This index needs a key", "Ask whoever runs the server for one. It is kept until you close this tab.", "", { needsKey: true });
  if (status === 403) return new Trouble("This is not allowed here", sentence(message ?? "The server refused."), detail);
  if (status === 429 || status === 503) {
    const wait = Math.min(30, Math.max(1, Number(response.headers.get("retry-after")) || 2));
    return new Trouble("The server is busy", "More is being asked of it than it can answer right now. Your question is asked again by itself.", "", { again: true, wait });
  }
  if (status === 504 || status === 408) return new Trouble("This took too long", "The time for one search ran out.", "Fewer candidates take less time: move the slider to the left.", { again: true });
  if (status < 500) return new Trouble("The question could not be answered", sentence(message ?? `Status ${status}.`), detail);
  return new Trouble("The server had a fault", "It is not your question's doing; the server's log says more.", "", { again: true });
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
