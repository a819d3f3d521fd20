// Pages stay true, show the zone of the viewer, and have keys. Links and forms do all else.

const html = document.documentElement, ROOT = html.dataset.root;
const PATH = location.pathname.slice(ROOT.length).replace(/\/$/, "");
const find = (selector, scope = document) => scope.querySelector(selector);
const all = (selector, scope = document) => [...scope.querySelectorAll(selector)];
const main = find("main"), [liveButton, themeButton] = find("#controls").children;
let kept = {};
try { kept = localStorage; } catch { /* Blocked. */ }

const say = (element, text) => { if (element && element.textContent !== text) element.textContent = text; };

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  made.append(...children);
  return made;
}
const makeButton = (look, text) => make("button", { class: look, type: "button" }, text);

// Theme: one attribute; without it, the system chooses.

const THEMES = ["automatic", "light", "dark"];
function choose(theme) {
  kept["monque-theme"] = html.dataset.theme = theme;
  themeButton.title = `Theme: ${theme}`;
}
const themeNow = () => Math.max(0, THEMES.indexOf(kept["monque-theme"]));
themeButton.onclick = () => choose(THEMES[(themeNow() + 1) % 3]);
choose(THEMES[themeNow()]);

// Moments: "now" is the server's, the zone is the browser's, the words are those of words/lengths.py.

let skew = 0; // Milliseconds that the server's clock is ahead.
const now = () => new Date(Date.now() + skew);
const local = (moment) => moment.toLocaleString("sv").replace(" ", "T"); // As ISO writes it.

function length(seconds) {
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    if (seconds >= size) parts.push(`${Math.floor(seconds / size)} ${unit}`);
    seconds %= size;
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

function ago(moment) {
  const seconds = Math.round((now() - moment) / 1000);
  return seconds > 0 ? `${length(seconds)} ago` : seconds ? `in ${length(-seconds)}` : "now";
}

function clock(moment) {
  const [day, time] = local(moment).split("T"), today = local(now());
  if (today.startsWith(day)) return time;
  const short = moment.toLocaleDateString("en-US", { month: "short", day: "numeric" });
  return `${day.slice(0, 4) === today.slice(0, 4) ? short : day} ${time.slice(0, 5)}`;
}

function showAges(scope) {
  for (const one of all("[data-ago]", scope)) say(one, ago(new Date(one.dateTime)));
}

function prepare(scope) { // Before it is shown or merged.
  skew = Date.parse(find(".foot time", scope)?.dateTime) - Date.now() || skew;
  showAges(scope);
  for (const one of all("[data-clock]", scope)) say(one, clock(new Date(one.dateTime)));
  for (const one of all("[data-hour]", scope)) { // Below a chart, in UTC.
    const at = now();
    at.setUTCHours(...one.textContent.split(":"));
    one.removeAttribute("data-hour");
    say(one, local(at).slice(11, 16));
  }
  for (const one of all(".zone", scope)) say(one, Intl.DateTimeFormat().resolvedOptions().timeZone);
  for (const one of all("[name=at]", scope)) { // Chosen in this zone, sent in UTC.
    one.value = local(new Date(one.valueAsNumber));
    one.form.onformdata = ({ formData }) => formData.set("at", new Date(one.value).toISOString());
  }
  for (const one of all("pre[tabindex]", scope)) {
    const button = makeButton("btn quiet copy", "Copy");
    if (one.matches(".tb")) one.after(button); else one.parentElement.querySelector("header").append(button);
  }
  for (const one of all("[hidden]", scope)) one.hidden = false; // What needs script.
}

// What was fetched becomes elements here only, without all that could act. The content policy is a second wall.

const trusted = window.trustedTypes?.createPolicy("monque", { createHTML: (text) => text });
const isForeign = (href) => make("a", { href }).origin !== location.origin;

function parsed(text) {
  const page = new DOMParser().parseFromString(trusted ? trusted.createHTML(text) : text, "text/html");
  for (const one of all("script,style,link,meta,base,iframe,object,embed,template,foreignObject,animate,set", page))
    one.remove();
  for (const one of all("*", page))
    for (const { name, value } of [...one.attributes])
      if (/^(on.*|style|srcdoc)$/i.test(name) || (/(href|src|action)$/i.test(name) && isForeign(value))) one.removeAttribute(name);
  return page;
}

// Merging: elements stay, and what differs in them changes. So focus, scroll, boxes and folds stay.

const ROWS = "tr, .attention > li, .groups > li, a.err";
const linkOf = (row) => (row?.matches("a") ? row : row?.querySelector("a"));
let isAnew = false; // The viewer has asked for the rows as they are now.

function keyOf(node) {
  if (node.nodeType !== 1) return "";
  const own = node.dataset.part || node.dataset.id;
  if (own || !node.matches(ROWS)) return own ?? "";
  if (node.matches(".attention *")) return node.textContent.replace(/[\d,.]+/g, "#"); // Numbers change.
  return linkOf(node)?.getAttribute("href") ?? "";
}

function byKey(nodes) {
  const found = new Map();
  for (const node of nodes) {
    const key = keyOf(node);
    if (key) found.set(key, [...(found.get(key) ?? []), node]);
  }
  return found;
}

// Rows stay while the viewer points at one; those of jobs, always.
const isHeld = (list) => !isAnew && list.matches("table.jobs tbody, :hover, :focus-within")
  && [...list.children].some((one) => one.matches(ROWS) && keyOf(one));

const isKin = (one, other) => !keyOf(one) && one.nodeName === other.nodeName && one.classList?.[0] === other.classList?.[0];

function merge(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== 1) { old.nodeValue = fresh.nodeValue; return; }
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const known = byKey(old.childNodes), wanted = byKey(fresh.childNodes), held = isHeld(old);
  for (const [key, nodes] of known) for (const [n, node] of nodes.entries()) {
    const newer = wanted.get(key)?.[n];
    if (held && newer) merge(node, newer);
    else if (held) node.classList.add("gone");
    else if (newer?.nodeName !== node.nodeName) { node.remove(); nodes[n] = null; }
  }
  if (held) return;
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    let same = known.get(keyOf(child))?.shift();
    if (!keyOf(child)) {
      same = at;
      while (same && !isKin(same, child)) same = child.nodeType === 1 ? same.nextSibling : null;
      while (same && at !== same) {
        const past = at;
        at = at.nextSibling;
        if (!keyOf(past)) past.remove();
      }
    }
    if (same && same === at) at = at.nextSibling; else old.insertBefore(same || child, at);
    if (same) merge(same, child);
  }
  while (at) [at] = [at.nextSibling, at.remove()];
}

// Jobs: what is new waits until it is asked for, and what no longer matches stays, pale.
function keepJobs(fresh) {
  const old = find("table.jobs tbody");
  if (!old || isAnew) return;
  const wanted = byKey(all("table.jobs tbody tr", fresh)), shown = byKey(old.rows);
  if (!wanted.size) {
    const list = old.closest("[data-part] > *").cloneNode(true);
    find("tbody", list).replaceChildren();
    find("[data-part=jobs] .empty", fresh)?.replaceWith(list);
  }
  const count = (some, others) => [...some.keys()].filter((key) => !others.has(key)).length;
  const come = count(wanted, shown), gone = count(shown, wanted);
  if (come || gone) find("#news", fresh)?.append(
    come ? `${come} new ${come > 1 ? "ones match" : "one matches"}.` : `${gone} no longer match.`,
    makeButton("btn anew", come > 1 ? "Show them" : come ? "Show it" : "Remove them"));
}

// Live: the server says what is stale, and then the page is asked for like any other.

const EVERY = 10_000; // Milliseconds between looks without a stream.
const [, job] = /^jobs\/([0-9a-f]{24})$/i.exec(PATH) ?? [];
const regions = job ? [`job:${job.toLowerCase()}`] : {
  "": ["names", "errors", "schedules", "instances", "minutes"], jobs: ["names"], errors: ["errors"], schedules: ["schedules"],
  instances: ["instances", "names"], claims: [], // Of other collections: no stream shows them.
}[PATH.split("/")[0]];
const isLive = !!regions && !!find("[data-part]");

let source, openAt = 0, hiddenAt = 0, isPaused = false, isBusy = false, isFailing = false;
let staleAt = 0, lookedAt = Date.now(), trueAt = lookedAt, nextAt = 0;
const isStreaming = () => source?.readyState === EventSource.OPEN;
const mark = () => { staleAt ||= Date.now(); };
const trueClock = () => clock(new Date(trueAt + skew));

function open() {
  if (source || isPaused || !regions.length || Date.now() < openAt) return;
  source = new EventSource(`${ROOT}api/v1/events${job ? `?job=${job}` : ""}`);
  source.addEventListener("stale", ({ data }) => {
    const news = JSON.parse(data);
    skew = Date.parse(news.at) - Date.now();
    if (news.regions.some((one) => regions.includes(one))) mark();
    beat();
  });
  source.onerror = () => {
    if (source?.readyState !== EventSource.CLOSED) return; // The browser tries again.
    close();
    openAt = Date.now() + 60_000;
  };
}

const close = () => { source = source?.close(); };

// Then the page waits, and shows its age.
function isDisturbing() {
  const chosen = getSelection();
  return find("dialog[open], details.more[open]") || (!chosen.isCollapsed && main.contains(chosen.anchorNode));
}

function showTrouble(status) {
  find(".trouble")?.remove();
  main.classList.toggle("old", status !== 200);
  if (status === 200) return;
  const why = { 0: "Reload the page to log in.", 403: "You may no longer read this.", 404: "This is no longer there." }[status];
  const words = why ? `${why} You see it as it was at ${trueClock()}.` : `No answer since ${trueClock()}, trying again.`;
  main.prepend(make("p", { class: "trouble", role: "status" }, words));
}

function apply(fresh) {
  prepare(fresh);
  keepJobs(fresh);
  showTrouble(200);
  merge(main, find("main", fresh));
  merge(find("nav.tabs"), find("nav.tabs", fresh));
  document.title = fresh.title;
  showChosen();
}

async function refresh() {
  const began = Date.now(), wasStaleAt = staleAt;
  let status = -1;
  isBusy = true;
  staleAt = 0;
  try {
    const answer = await fetch(location.href, { redirect: "manual", signal: AbortSignal.timeout(30_000) });
    const fresh = parsed(await answer.text());
    status = answer.status;
    isFailing = status !== 200;
    if (isFailing) throw status;
    if ((isPaused || isDisturbing()) && !isAnew) return void (staleAt = wasStaleAt);
    apply(fresh);
    trueAt = Date.now();
  } catch {
    isFailing = true;
    staleAt = wasStaleAt;
    showTrouble(status);
  } finally {
    isBusy = isAnew = false;
    lookedAt = Date.now();
    // What takes long to make is asked for less often.
    nextAt = lookedAt + (isFailing ? EVERY : Math.min(EVERY, 10 * (lookedAt - began)));
  }
}

function beat() {
  const at = Date.now();
  if (document.hidden) {
    if (at - (hiddenAt ||= at) >= 30_000) close();
    return;
  }
  hiddenAt = 0; // A stream that opens again begins with all that is stale.
  const isWaiting = isDisturbing();
  if (!isWaiting) showAges(main);
  if (!isLive) return;
  open();
  // Also with a stream: a silent instance or a late job changes nothing in the database.
  if (at - lookedAt >= (isStreaming() ? 3 * EVERY : EVERY)) mark();
  if (staleAt && !isPaused && !isBusy && at >= nextAt && !isWaiting) refresh();
  const isOld = isFailing || (staleAt && at - staleAt > 5000);
  const state = isPaused ? "Paused" : isOld ? `${length(Math.round((at - trueAt) / 1000))} old` : isStreaming() ? "Live" : "Every 10 s";
  liveButton.classList.toggle("hollow", state !== "Live");
  say(liveButton.lastElementChild, state);
  liveButton.title = `As it was at ${trueClock()}. Press to ${isPaused ? "go on" : "pause"}.`;
}

function pause() {
  isPaused = !isPaused;
  openAt = 0;
  if (isPaused) close(); else mark();
  beat();
}

// Clicks

async function copy(button) {
  const text = button.closest("section, details").querySelector("pre").textContent;
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text); // Not there on plain HTTP.
  } catch {
    const field = make("textarea", { class: "visually-hidden" }, text);
    button.after(field);
    field.select();
    isCopied = document.execCommand("copy");
    field.remove();
    button.focus();
  }
  say(button, isCopied ? "Copied" : "Not copied");
  setTimeout(() => say(button, "Copy"), 2000);
}

const boxes = () => all("td.c-box input");

function showChosen() {
  const found = boxes(), chosen = found.filter((one) => one.checked).length, every = find("#choose-all");
  say(find("#chosen-count"), chosen ? `${chosen} chosen:` : "Chosen:");
  if (every) Object.assign(every, { checked: !!chosen && chosen === found.length, indeterminate: !!chosen && chosen < found.length });
}

document.addEventListener("change", ({ target }) => {
  if (target.id === "choose-all") for (const one of boxes()) one.checked = target.checked;
  if (target.id === "keys-on") kept["monque-keys"] = target.checked;
  showChosen();
});

document.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (button?.matches(".copy")) copy(button);
  if (button?.matches(".keys")) help();
  if (button?.matches(".anew")) {
    isAnew = true;
    find("[data-part=jobs] .scroll").focus();
    if (isBusy) mark(); else refresh();
  }
});

// Keys: off in fields, or altogether.

const keysOn = () => kept["monque-keys"] !== "false";
let goingAt = 0;

function help() {
  find("#keys-on").checked = keysOn();
  find("#keys").showModal();
}

const rows = () => all(ROWS).filter((one) => linkOf(one) && !one.matches("thead *"));
const rowNow = () => rows().find((one) => one.contains(document.activeElement));
function step(by) {
  const found = rows(), at = found.indexOf(rowNow());
  linkOf(found[at < 0 ? 0 : at + by])?.focus();
}

const DO = {
  "/": () => find(".find input").select(),
  g: () => { goingAt = Date.now(); },
  j: () => step(1),
  k: () => step(-1),
  x: () => rowNow()?.querySelector(".c-box input")?.click(),
  r: () => {
    const retry = find("[name=do][value=retry]");
    if (retry?.matches("button")) retry.click(); else retry?.form.requestSubmit();
  },
  ".": () => { if (isLive) pause(); },
  "?": help,
};

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || find("dialog[open]")) return;
  if (target.matches("input:not([type=checkbox]), textarea, select")) return key === "Escape" && target.blur();
  if (!keysOn()) return;
  const tab = Date.now() - goingAt < 2000 && all("nav.tabs a").find((one) => one.text[0].toLowerCase() === key);
  goingAt = 0;
  if (tab) tab.click(); else if (Object.hasOwn(DO, key)) DO[key](); else return;
  event.preventDefault();
});

liveButton.onclick = pause;
prepare(document);
liveButton.hidden = !isLive;
showChosen();
addEventListener("visibilitychange", beat);
setInterval(beat, job ? 250 : 1000);
beat();
