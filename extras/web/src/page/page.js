// Requests the state every second and draws it. Everything from the state is inserted as text, never as HTML, because
// peers choose their own names.
"use strict";

const by = id => document.getElementById(id);
const EVERY = 1000, WHILE_HIDDEN = 5000, TIMEOUT = 10000;
let state = null, timer = null, lost = 0;

// ---- texts ----

function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  while (count >= 1000 && unit < 5) { count /= 1000; unit += 1; }
  const digits = unit === 0 || count >= 100 ? 0 : 1;
  return `${count.toFixed(digits)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
}

const number = count => Math.round(count).toLocaleString("en-US");
// Never show 100 % before the end.
const percent = part => part >= 1 ? "100 %" : `${Math.min(part * 100, 99.9).toFixed(1)} %`;

function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const all = Math.round(seconds), two = part => String(part).padStart(2, "0");
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min ${two(all % 60)} s`;
  if (all < 86400) return `${Math.floor(all / 3600)} h ${two(Math.floor(all / 60) % 60)} min`;
  return `${Math.floor(all / 86400)} d ${Math.floor(all / 3600) % 24} h`;
}

const clock = time => new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

// ---- drawing ----

function node(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function track(part) {
  const fill = node("div");
  if (part !== null) fill.style.width = `${Math.min(100, 100 * part)}%`;
  return node("div", "track", fill);
}

function definitions(place, pairs) {
  place.replaceChildren(...pairs.filter(([, value]) => value).flatMap(([name, value]) =>
    place.classList.contains("facts")
      ? [node("div", "", node("dt", "", name), node("dd", "", value))]
      : [node("dt", "", name), node("dd", "", value)]));
}

function drawHead() {
  const word = { running: "running", stalled: "stalled", waiting: "at the tip", done: "done", failed: "failed", stopped: "stopped" }[state.state];
  const line = `${state.command} ${state.chain}`;
  by("title").textContent = `Apus ${line}`;
  document.title = `${state.fraction === null ? word : percent(state.fraction)} – Apus ${line}`;
  const gone = lost > 2 && !state.ended;
  by("state").textContent = gone ? "no answer" : word;
  by("state").className = `state ${gone ? "failed" : ["stopped", "stalled"].includes(state.state) ? "failed" : state.state}`;
  document.body.classList.toggle("failed-run", state.state === "failed");
  by("percent").textContent = state.fraction === null ? "–" : percent(state.fraction);
  by("bar-fill").style.width = `${100 * (state.fraction ?? 0)}%`;
  by("bar").setAttribute("aria-valuenow", Math.round(100 * (state.fraction ?? 0)));
  by("left").textContent = state.ended ? `after ${duration(state.seconds)}`
    : state.stalled ? `stalled for ${duration(state.stalled.seconds)}, ${duration(state.seconds)} so far`
    : state.left_seconds === null ? `${duration(state.seconds)} so far`
    : `about ${duration(state.left_seconds)} left, ${duration(state.seconds)} so far`;
  const rests = state.ended || state.state === "waiting";
  definitions(by("facts"), [
    ["Rate (last minute)", !rests && (state.rate.bytes || state.stalled) ? `${bytes(state.rate.bytes)}/s` : ""],
    ["Blocks per second", !rests && state.rate.blocks >= 1 ? number(state.rate.blocks) : ""],
    ["Waiting for", state.stalled ? state.stalled.waits_for : ""],
    ["Limited by", rests || state.stalled ? "" : state.limited_by],
    ["Chain found", state.chain_found && `${number(state.chain_found.height)} blocks`],
    ["Coins", state.coins ? number(state.coins) : ""],
    ["Memory", bytes(state.memory_bytes)],
    ["Processors in use", state.ended || state.cpu_cores === null ? "" : `${state.cpu_cores.toFixed(1)} of ${state.cores}`],
    ["Peers", state.peers ? number(state.peers.length) : ""],
  ]);
}

function drawNotice() {
  const text = state.ended && state.ended.code !== 0 ? state.ended.text
    : lost > 2 && !state.ended ? "Apus no longer answers: the job was stopped, or the connection is down. This page shows the last known state."
    : "";
  by("notice").hidden = !text;
  by("notice").textContent = text;
  by("notice").className = `notice ${state.state === "failed" ? "bad" : ""}`;
}

function phase(it) {
  const waiting = it.state === "waiting", done = it.state === "done";
  const row = node("li", `${it.state} ${it.fraction === null && !waiting ? "unknown" : ""}`,
    node("span", "name", it.phase), track(done ? 1 : waiting ? 0 : it.fraction),
    node("span", "amount", done ? "done" : waiting ? "–" : it.fraction === null ? "…" : percent(it.fraction)));
  const more = [];
  if (it.blocks_total && it.state === "running") more.push(`${number(it.blocks)} of ${number(it.blocks_total)} blocks`);
  if (it.state === "running" && it.rate_bytes) more.push(`${bytes(it.rate_bytes)}/s`);
  if (it.state === "running" && it.left_seconds !== null) more.push(`${duration(it.left_seconds)} left`);
  if (done) more.push(`${duration(it.seconds)}${it.bytes ? `, ${bytes(it.bytes)}` : ""}`);
  if (more.length) row.append(node("span", "more", more.join(", ")));
  return row;
}

function drawSegments() {
  const segments = state.segments;
  by("segments-card").hidden = !segments;
  if (!segments) return;
  const kinds = { ".": "", "a": "begun", "1": "d1", "2": "d2", "3": "d3", "#": "done" };
  const place = by("segments");
  place.className = `segments ${segments.cells.length <= 40 ? "few" : segments.cells.length <= 200 ? "some" : ""}`;
  while (place.children.length > segments.cells.length) place.lastChild.remove();
  while (place.children.length < segments.cells.length) place.append(node("i"));
  [...segments.cells].forEach((cell, i) => { if (place.children[i].className !== kinds[cell]) place.children[i].className = kinds[cell]; });
  const text = `${number(segments.done)} of ${number(segments.of)} done, ${number(segments.begun)} in progress`;
  place.setAttribute("aria-label", text);
  by("segments-text").replaceChildren(`${text}. Heights ascend from the upper left; each square covers about the same number of bytes.`,
    node("br"), node("span", "key done"), "done", node("span", "key begun"), "in progress", node("span", "key"), "waiting");
}

function peer(it) {
  const tags = [it.user_agent, it.encrypted ? "encrypted" : "", it.inbound ? "inbound" : "", it.stalled ? "silent" : ""];
  return node("tr", it.stalled ? "stalled" : "",
    node("td", "peer", it.address, node("span", "agent", tags.filter(Boolean).join(", "))),
    node("td", "number", `${bytes(it.rate)}/s`), node("td", "share", track(it.share)),
    node("td", "number", bytes(it.bytes)), node("td", "number", number(it.in_flight)));
}

function worker(it) {
  return node("tr", "", node("td", "peer", it.name), node("td", "number", number(it.segments)),
    node("td", "number", bytes(it.bytes)), node("td", "", it.doing));
}

function table(card, id, rows) {
  by(card).hidden = !rows || rows.length === 0;
  if (rows) by(id).tBodies[0].replaceChildren(...rows);
}

function drawReport() {
  const report = state.report;
  by("report-card").hidden = !report;
  if (!report) return;
  const failure = report.failure;
  definitions(by("report"), failure ? [
    ["Ended", `exit code ${failure.code}`],
    ["Error class", failure.class],
    ["Phase", failure.phase],
    ["Block", failure.height === null ? "" : `${number(failure.height)} ${failure.hash ?? ""}`],
    ["Reason", failure.text],
  ] : [
    ["Stop block", report.stop_height === undefined ? "" : `${number(report.stop_height)} ${report.stop_hash}`],
    ["Coins", report.coins == null ? "" : number(report.coins)],
    ["MuHash", report.muhash],
    ["hash_serialized_3", report.hash_serialized_3],
    ["Written", (report.files ?? []).concat(report.folders ?? []).map(it => it.path).join(", ")],
    ["Engine", report.engine],
    ["Validation", report.validation],
    ["Assumed", (report.assumed ?? []).join("; ")],
    ["Peak memory", report.rss_peak_bytes ? bytes(report.rss_peak_bytes) : ""],
    ["Processor time", report.cpu_seconds ? duration(report.cpu_seconds) : ""],
  ]);
}

let drawnEvents = "";

// Redrawn only for a new event: the reader may be selecting text.
function drawEvents() {
  const last = state.events[state.events.length - 1];
  const mark = last ? `${state.events.length} ${last.time} ${last.text}` : "";
  if (mark === drawnEvents) return;
  drawnEvents = mark;
  by("events").replaceChildren(...state.events.slice().reverse().map(it => {
    const time = node("time", "", clock(it.time));
    time.dateTime = new Date(it.time * 1000).toISOString();
    return node("li", it.kind, time, node("span", "", it.text));
  }));
}

function draw() {
  if (!state) return;
  drawHead();
  drawNotice();
  by("phases").replaceChildren(...state.phases.map(phase));
  const course = state.history;
  charts.area(by("rate-chart"), "rate", course.seconds, course.bytes_rate, value => `${bytes(value)}/s`, duration);
  charts.area(by("memory-chart"), "memory", course.seconds, course.memory_bytes, bytes, duration);
  drawSegments();
  table("peers-card", "peers", state.peers && state.peers.map(peer));
  table("workers-card", "workers", state.workers && state.workers.map(worker));
  drawReport();
  drawEvents();
  by("footer").textContent = `apus ${state.version}, ${state.platform}, ${state.sha256}. Began ${new Date(state.began * 1000).toLocaleString()}.`;
}

// ---- requests ----

async function ask() {
  clearTimeout(timer);
  const abort = new AbortController();
  const tooLate = setTimeout(() => abort.abort(), TIMEOUT);
  try {
    const answer = await fetch("state.json", { signal: abort.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    state = await answer.json();
    lost = 0;
  } catch (error) {
    lost += 1;
    if (!state) { by("notice").hidden = false; by("notice").textContent = `Apus does not answer: ${error.message}`; }
  }
  clearTimeout(tooLate);
  draw();
  // The state does not change after the end.
  if (state && state.ended) return;
  timer = setTimeout(ask, document.hidden ? WHILE_HIDDEN : EVERY * Math.min(1 + lost, 10));
}

addEventListener("resize", draw);
document.addEventListener("visibilitychange", () => { if (!document.hidden && !(state && state.ended)) ask(); });
ask();
