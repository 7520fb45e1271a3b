// Filters as people write them, such as: year >= 2020 and lang = en|de. They become the JSON of POST /v1/search.

const OPERATORS = { "=": "", ":": "", "!=": "", ">=": "gte", "<=": "lte", ">": "gt", "<": "lt" };
const OFFERED = { string: ["=", "!="], boolean: ["="], number: ["=", ">=", "<=", ">", "<", "!="] };
const TOKEN = /"((?:[^"\\]|\\.)*)"?|(>=|<=|!=|[=:><])|([,|])|([^\s"=<>!:,|]+)|!/g;

function tokenize(text) {
  return [...text.matchAll(TOKEN)].map((hit) => ({
    start: hit.index,
    end: hit.index + hit[0].length,
    kind: hit[2] ? "operator" : hit[3] ? "mark" : "word",
    quoted: hit[0].startsWith('"'),
    text: hit[1] === undefined ? hit[0] : hit[1].replace(/\\(.)/g, "$1"),
  }));
}

const isJoint = (token) => !token.quoted && (token.text === "," || token.text.toLowerCase() === "and");

// Returns {filter, error}: the JSON, null for an empty text; or what is wrong with it.
export function parseFilter(text, fields) {
  if (!text.trim()) return { filter: null };
  if (text.trim().startsWith("{")) {
    try { return { filter: JSON.parse(text) }; } catch (error) { return { error: `This is not JSON: ${error.message}` }; }
  }
  try {
    return { filter: join(parseConditions(tokenize(text), fields)) };
  } catch (error) {
    if (typeof error !== "string") throw error;
    return { error };
  }
}

function parseConditions(tokens, fields) {
  const conditions = [];
  let at = 0;
  while (at < tokens.length) {
    const [name, operator, ...rest] = tokens.slice(at);
    if (name.kind !== "word") throw `A field is expected before "${name.text}"`;
    const field = findField(name.text, fields);
    if (operator?.kind !== "operator") throw `After ${field.name} an operator is expected: ${OFFERED[field.kind].join(" ")}`;
    const values = [];
    let taken = 0;
    for (;;) {
      const value = rest[taken++];
      if (value?.kind !== "word" || isJoint(value)) throw `After ${field.name} ${operator.text} a ${field.kind} is expected`;
      values.push(convert(value, field));
      if (rest[taken]?.text !== "|") break;
      taken++;
    }
    conditions.push(makeCondition(field, operator.text, values));
    at += 2 + taken;
    if (at < tokens.length && !isJoint(tokens[at])) throw `Before "${tokens[at].text}" an "and" is expected; put values with spaces in "quotes"`;
    at++;
  }
  if (tokens.length && isJoint(tokens.at(-1))) throw 'After "and" a field is expected';
  return conditions;
}

function findField(name, fields) {
  const field = fields.find((one) => one.name === name) ?? fields.find((one) => one.name.toLowerCase() === name.toLowerCase());
  if (field) return field;
  const near = fields.find((one) => isNear(one.name.toLowerCase(), name.toLowerCase()));
  throw `There is no field "${name}"${near ? `; did you mean ${near.name}?` : ""} This index has ${fields.map((one) => one.name).join(", ")}`;
}

// One letter too many, too few, changed or swapped, or a common beginning.
function isNear(one, other) {
  if (one.startsWith(other) || other.startsWith(one)) return true;
  const sorted = (word) => [...word].sort().join("");
  if (sorted(one) === sorted(other)) return true;
  const [long, short] = one.length >= other.length ? [one, other] : [other, one];
  if (long.length - short.length > 1) return false;
  const at = [...short].findIndex((letter, place) => letter !== long[place]);
  if (at < 0) return true;
  return long.slice(at + 1) === short.slice(long.length === short.length ? at + 1 : at);
}

function convert({ text, quoted }, { name, kind }) {
  if (kind === "string") return text;
  if (kind === "boolean") {
    if (/^(true|false)$/i.test(text)) return text.toLowerCase() === "true";
    throw `${name} is true or false, not "${text}"`;
  }
  if (quoted || text.trim() === "" || !Number.isFinite(Number(text))) throw `${name} is a number, "${text}" is none`;
  return Number(text);
}

function makeCondition({ name, kind }, operator, values) {
  const bound = OPERATORS[operator];
  if (!bound) {
    const equals = { [name]: values.length > 1 ? { any: values } : values[0] };
    return operator === "!=" ? { not: equals } : equals;
  }
  if (kind === "boolean") throw `${name} is true or false and has no order: write ${name} = true`;
  if (values.length > 1) throw `${name} ${operator} takes one value`;
  return { [name]: { [bound]: values[0] } };
}

const join = (conditions) => (conditions.length === 1 ? conditions[0] : { and: conditions });

export const quote = (text) => (/^[^\s"=<>!:,|{]+$/.test(text) && !/^and$/i.test(text) ? text : `"${text.replace(/["\\]/g, "\\$&")}"`);

export function writeCondition(name, value) {
  return `${quote(name)} = ${typeof value === "string" ? quote(value) : value}`;
}

// What may follow at the caret: {start, end, options: [{text, note}]}.
export function suggest(text, caret, fields) {
  if (text.trim().startsWith("{")) return { start: caret, end: caret, options: [] };
  let expected = "field", field = null, typed = { start: caret, end: caret, text: "" };
  for (const token of tokenize(text.slice(0, caret))) {
    if (token.end === caret && token.kind === "word") { typed = token; break; }
    if (expected === "field") {
      field = fields.find((one) => one.name === token.text) ?? null;
      expected = "operator";
    } else if (expected === "operator") expected = "value";
    else if (expected === "value") expected = "joint";
    else expected = token.text === "|" ? "value" : "field";
  }
  const said = { field: listFields, operator: listOperators, value: listValues, joint: () => [{ text: "and", note: "" }] }[expected];
  const begins = typed.text.toLowerCase();
  const options = said(fields, field).filter((one) => one.text.toLowerCase().replace(/^"/, "").startsWith(begins));
  const end = typed.end + (text.slice(typed.end).match(/^[^\s"=<>!:,|]*/)?.[0].length ?? 0);
  return { start: typed.start, end: typed.text || typed.quoted ? end : caret, options: options.filter((one) => one.text !== typed.text) };
}

const listFields = (fields) => fields.map(({ name, kind, values }) => ({ text: quote(name), note: [kind, values.slice(0, 3).join(", ")].filter(Boolean).join(": ") }));
const listOperators = (_, field) => OFFERED[field?.kind ?? "string"].map((text) => ({ text, note: "" }));
function listValues(_, field) {
  const values = field?.kind === "boolean" ? [true, false] : field?.values ?? [];
  return values.map((value) => ({ text: typeof value === "string" ? quote(value) : String(value), note: "" }));
}

// A text box with a list of what may follow; `changed` is called when the text has been changed.
export function makeFilterBox(input, list, getFields, changed) {
  let offer = null, at = -1;

  function close() {
    list.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function open() {
    offer = suggest(input.value, input.selectionStart ?? input.value.length, getFields());
    if (!offer.options.length) return close();
    list.replaceChildren(...offer.options.map(({ text, note }, number) => {
      const option = Object.assign(document.createElement("li"), { id: `filter-option-${number}`, textContent: text });
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      if (note) option.append(Object.assign(document.createElement("small"), { textContent: note }));
      option.addEventListener("mousedown", (event) => { event.preventDefault(); take(number); });
      return option;
    }));
    at = -1;
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    input.removeAttribute("aria-activedescendant");
  }

  function move(by) {
    const options = [...list.children];
    at = (at + by + options.length + (at < 0 && by < 0 ? 1 : 0)) % options.length;
    options.forEach((option, number) => option.setAttribute("aria-selected", String(number === at)));
    input.setAttribute("aria-activedescendant", options[at].id);
    options[at].scrollIntoView({ block: "nearest" });
  }

  function take(number) {
    const { start, end, options } = offer;
    const before = `${input.value.slice(0, start)}${options[number].text} `;
    input.value = before + input.value.slice(end).trimStart();
    input.setSelectionRange(before.length, before.length);
    open();
    changed();
  }

  input.addEventListener("input", () => { open(); changed(); });
  input.addEventListener("focus", open);
  input.addEventListener("click", open);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const isOpen = !list.hidden;
    if (event.key === "ArrowDown" && !isOpen) open();
    else if (event.key === "ArrowDown" || (event.key === "ArrowUp" && isOpen)) move(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Tab" && isOpen && at >= 0) take(at);
    else if (event.key === "Enter" && isOpen && at >= 0) take(at);
    else if (event.key === "Escape" && isOpen) close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
