// The page: a conversation in which every message gets K replies, one of which continues it.
// Text of the model and of people is only ever set as textContent.

import { ApiError, completion, hasKey, replies as fetchReplies, servedModel, setKey } from "./api.js";
import { distances, layout, meanDistance } from "./difference.js";

const EXAMPLES = ["I finally passed my driving test!", "Do you want to have dinner on Friday?", "My cat ignores me.", "What should I read next?"];
const COLOURS = 12;
const THEMES = ["system", "light", "dark"];
const WAYS = { beam: "Beam search", nucleus: "Nucleus sampling" };
const REPLY_OF = { beam: "beam", nucleus: "sample" };

const byId = (id) => document.getElementById(id);
const state = { model: null, turns: [], replies: [], compared: { beam: [], nucleus: [] }, abort: null, isBusy: false };

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

// The class that gives a card, a point or a turn the colour of its decoder, or that of a way without decoders.
function colour(card) {
  return card.decoder === null ? `of-${card.group}` : `c${card.decoder % COLOURS}`;
}

function svg(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function say(text) {
  byId("status").textContent = text;
}

function complain(error) {
  const box = byId("alert");
  box.hidden = !error;
  box.textContent = error ? `That did not work: ${error.message}` : "";
}

// Conversation.

function addTurn(text, reply = null) {
  const turn = element("li", reply ? `turn reply ${colour(reply)}` : "turn user", text);
  turn.dir = "auto";
  turn.setAttribute("aria-label", `${reply ? "Reply" : "You"}: ${text}`);
  state.turns.push(text);
  byId("turns").append(turn);
}

async function send(text) {
  if (state.isBusy) stop();
  if (state.replies.length) choose(likeliest(state.replies));
  byId("welcome").hidden = true;
  addTurn(text);
  await reply();
}

function stop() {
  state.abort?.abort();
  state.isBusy = false;
}

async function reply() {
  const abort = new AbortController();
  Object.assign(state, { abort, isBusy: true, replies: [], compared: { beam: [], nucleus: [] } });
  complain(null);
  showCards();
  byId("decoders").setAttribute("aria-busy", "true");
  byId("decoders").querySelector(".choose")?.focus({ preventScroll: true });
  bringIntoView();
  say("The decoders are replying.");
  compare();
  try {
    for await (const choice of completion(state.model.id, state.turns, state.model.num_decoders, abort.signal)) {
      grow(choice);
    }
    finish();
  } catch (error) {
    if (!abort.signal.aborted) failed(error);
  } finally {
    if (state.abort === abort) state.isBusy = false;
    byId("decoders").removeAttribute("aria-busy");
  }
}

function failed(error) {
  byId("columns").hidden = true;
  byId("map").hidden = true;
  state.replies = [];
  const text = state.turns.pop();
  byId("turns").lastElementChild?.remove();
  byId("welcome").hidden = state.turns.length > 0;
  byId("message").value ||= text;
  resize();
  complain(error);
  byId("message").focus();
  if (error instanceof ApiError && error.status === 401) askForKey();
}

function grow(choice) {
  const card = state.replies[choice.index];
  card.text += choice.delta.content || "";
  card.textNode.textContent = card.text;
  if (choice.finish_reason) end(card, choice.logprob);
}

function end(card, logprob) {
  card.logprob = logprob;
  card.isDone = true;
  card.node.classList.remove("is-growing");
  card.node.classList.toggle("is-empty", !card.text);
  if (!card.text) card.textNode.textContent = "(nothing)";
  card.chooseNode.disabled = !card.text;
  card.copyNode.hidden = !card.text;
  showLikelihoods(card.group);
  drawMap();
}

function finish() {
  const best = likeliest(state.replies);
  say(`${state.replies.length} replies. Most likely, number ${best.place + 1}: ${best.text}`);
}

const likeliest = (cards) => cards.reduce((best, card) => ((card.logprob ?? -Infinity) > (best.logprob ?? -Infinity) ? card : best));

function choose(card) {
  if (!card?.text) return;
  stop();
  addTurn(card.text, card);
  Object.assign(state, { replies: [], compared: { beam: [], nucleus: [] } });
  for (const id of ["columns", "map"]) byId(id).hidden = true;
  say(`You continue with: ${card.text}`);
  bringIntoView();
  byId("message").focus();
}

function restart() {
  stop();
  Object.assign(state, { turns: [], replies: [], compared: { beam: [], nucleus: [] } });
  byId("turns").replaceChildren();
  for (const id of ["columns", "map", "alert"]) byId(id).hidden = true;
  byId("welcome").hidden = false;
  byId("message").value = "";
  resize();
  byId("message").focus();
  say("New conversation.");
}

function bringIntoView() {
  const last = byId("turns").lastElementChild;
  last?.scrollIntoView({ block: "start", behavior: "smooth" });
}

// Cards.

function showCards() {
  const { num_decoders: number, manners } = state.model;
  state.replies = Array.from({ length: number }, (_, place) =>
    makeCard({ place, decoder: place, manner: manners[place] || `decoder ${place + 1}`, group: "decoders" }),
  );
  byId("decoders").replaceChildren(...state.replies.map((card) => card.node));
  byId("columns").hidden = false;
}

function makeCard({ place, decoder, manner, group }) {
  const node = element("li", `card ${colour({ decoder, group })}`);
  const card = { place, decoder, group, node, text: "", logprob: null, isDone: false };
  node.classList.add("is-growing");
  card.chooseNode = element("button", "choose");
  card.chooseNode.type = "button";
  card.textNode = element("span", "text");
  card.textNode.dir = "auto";
  const meta = element("span", "meta");
  card.likelyNode = element("span", "likely");
  meta.append(element("span", "manner", manner), card.likelyNode);
  card.chooseNode.append(element("span", "number", String(place + 1)), card.textNode, meta);
  card.chooseNode.addEventListener("click", () => choose(card));
  card.copyNode = copyButton(card);
  node.append(card.chooseNode, card.copyNode);
  node.addEventListener("pointerenter", () => highlight(card, true));
  node.addEventListener("pointerleave", () => highlight(card, false));
  node.addEventListener("focusin", () => highlight(card, true));
  node.addEventListener("focusout", () => highlight(card, false));
  return card;
}

function copyButton(card) {
  const button = element("button", "copy");
  button.type = "button";
  button.hidden = true;
  button.setAttribute("aria-label", `Copy reply ${card.place + 1}`);
  const icon = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" });
  icon.append(svg("rect", { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5 }), svg("path", { d: "M10.5 3v-.5h-8v8H3" }));
  button.append(icon);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(card.text);
      button.classList.add("is-done");
      setTimeout(() => button.classList.remove("is-done"), 1500);
      say("Copied.");
    } catch {
      say("The browser does not allow copying here.");
    }
  });
  return button;
}

function cardsOf(group) {
  return group === "decoders" ? state.replies : state.compared[group];
}

// A bar shows a log-probability between those of the least and the most likely reply of its group.
function showLikelihoods(group) {
  const cards = cardsOf(group).filter((card) => card.logprob !== null);
  const all = cards.map((card) => card.logprob);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  for (const card of cards) {
    const bar = element("span", "bar");
    const fill = element("i");
    fill.style.width = `${most > least ? 12 + (88 * (card.logprob - least)) / (most - least) : 100}%`;
    bar.append(fill);
    const text = element("span", "", `log p ${card.logprob.toFixed(1).replace("-", "−")}`);
    card.likelyNode.replaceChildren(bar, text);
    card.node.classList.toggle("is-likeliest", card.logprob === most && cards.length > 1);
  }
}

// Other ways to decode, beside the decoders.

async function compare() {
  const wanted = Object.keys(WAYS).filter((way) => byId(`with-${way}`).checked);
  for (const way of Object.keys(WAYS)) byId(`${way}-column`).hidden = !wanted.includes(way);
  byId("columns").classList.toggle("with-one", wanted.length === 1);
  byId("columns").classList.toggle("with-two", wanted.length === 2);
  await Promise.all(wanted.map(addCompared));
  drawMap();
}

async function addCompared(way) {
  if (!state.replies.length || state.compared[way].length) return;
  const number = state.model.num_decoders;
  const cards = Array.from({ length: number }, (_, place) =>
    makeCard({ place, decoder: null, manner: REPLY_OF[way], group: way }),
  );
  state.compared[way] = cards;
  complain(null);
  byId(way).replaceChildren(...cards.map((card) => card.node));
  try {
    const found = await fetchReplies(state.model.id, state.turns, way, number, state.abort.signal);
    if (state.compared[way] !== cards) return;
    found.forEach((one, place) => {
      cards[place].text = cards[place].textNode.textContent = one.text;
      end(cards[place], one.logprob);
    });
  } catch (error) {
    if (state.compared[way] !== cards) return;
    state.compared[way] = [];
    byId(way).replaceChildren();
    complain(error);
  }
}

// The map.

function drawMap() {
  const groups = ["decoders", ...Object.keys(WAYS)].filter(
    (group) => group === "decoders" || byId(`with-${group}`).checked,
  );
  const shown = groups.flatMap((group) => cardsOf(group).filter((card) => card.isDone && card.text));
  byId("map").hidden = shown.length < 2;
  if (shown.length < 2) return;
  const points = layout(distances(shown.map((card) => card.text)), 240, 190, 8);
  const dots = shown.map((card, i) => dot(card, points[i]));
  byId("points").replaceChildren(svg("rect", { class: "frame", width: 240, height: 190, rx: 8 }), ...dots);
  const texts = groups.map((group) => [group, shown.filter((card) => card.group === group).map((card) => card.text)]);
  const means = texts.filter(([, some]) => some.length > 1).map(([group, some]) => [group, meanDistance(some)]);
  byId("legend").replaceChildren(...means.map(([group, mean]) => legendRow(group, mean)));
  const said = means.map(([group, mean]) => `${WAYS[group] || "decoders"} ${mean.toFixed(2)}`).join(", ");
  byId("points").setAttribute("aria-label", `Map of ${shown.length} replies; mean distance, from 0 to 1: ${said}`);
}

function dot(card, [x, y]) {
  const group = svg("g", { class: colour(card) });
  const shape = card.group === "nucleus" ? svg("rect", { x: x - 7, y: y - 7, width: 14, height: 14, rx: 3 }) : svg("circle", { cx: x, cy: y, r: 8 });
  shape.setAttribute("class", "point");
  const label = svg("title", {}, card.text);
  group.append(label, shape, svg("text", { x, y }, String(card.place + 1)));
  group.addEventListener("pointerenter", () => highlight(card, true));
  group.addEventListener("pointerleave", () => highlight(card, false));
  group.addEventListener("click", () => card.chooseNode.focus());
  group.classList.toggle("found", card.node.classList.contains("found"));
  card.dot = group;
  return group;
}

function legendRow(group, mean) {
  const row = element("li");
  const mark = { decoders: "● decoders", beam: "○ beam search", nucleus: "▢ nucleus sampling" }[group];
  row.append(element("span", "", mark), element("b", "", mean.toFixed(2)));
  return row;
}

function highlight(card, on) {
  card.node.classList.toggle("found", on);
  card.dot?.classList.toggle("found", on);
}

// Keyboard: digits choose, arrows move between cards, Enter on a card chooses it, Escape goes back to writing.

function onKey(event) {
  const isWriting = event.target === byId("message") || event.target.tagName === "INPUT";
  if (event.ctrlKey || event.metaKey || byId("key-dialog").open) return;
  if (event.key === "Escape") {
    byId("message").focus();
  } else if (/^[0-9]$/.test(event.key) && (!isWriting || event.altKey)) {
    const card = state.replies[event.key === "0" ? 9 : Number(event.key) - 1];
    if (card?.isDone) {
      event.preventDefault();
      choose(card);
    }
  } else if (event.key.startsWith("Arrow") && event.target.classList?.contains("choose")) {
    event.preventDefault();
    move(event.target, event.key);
  }
}

function move(from, key) {
  const buttons = [...document.querySelectorAll("#columns .column:not([hidden]) .choose")].filter((one) => !one.disabled);
  const own = from.getBoundingClientRect();
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  let best = null;
  for (const button of buttons) {
    const box = button.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2 - own.left - own.width / 2, box.top + box.height / 2 - own.top - own.height / 2];
    const along = x * dx + y * dy;
    const across = Math.abs(x * dy) + Math.abs(y * dx);
    if (along > 4 && (!best || along + 3 * across < best.cost)) best = { button, cost: along + 3 * across };
  }
  best?.button.focus();
}

// Start.

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("polyreply-theme", theme);
  byId("theme").setAttribute("aria-label", `Theme: ${theme === "system" ? "as the system" : theme}`);
  byId("theme").textContent = { system: "◐", light: "○", dark: "●" }[theme];
}

function askForKey() {
  byId("key-problem").hidden = !hasKey();
  byId("key-dialog").showModal();
  byId("key").select();
}

async function connect() {
  try {
    state.model = await servedModel();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) askForKey();
    else complain(error);
    byId("model").textContent = "not connected";
    return;
  }
  complain(null);
  const { id, num_decoders: number, decode } = state.model;
  byId("model").replaceChildren(id, element("span", "", ` · ${number} decoders`));
  byId("count").textContent = { 2: "two", 3: "three", 4: "four", 5: "five", 10: "ten" }[number] || String(number);
  byId("compare").hidden = !decode.includes("beam");
  byId("send").disabled = false;
}

function resize() {
  const box = byId("message");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, 144)}px`;
}

function start() {
  byId("composer").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!state.model) await connect();
    const text = byId("message").value.trim();
    if (!text || !state.model) return;
    byId("message").value = "";
    resize();
    send(text);
  });
  byId("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("composer").requestSubmit();
    }
  });
  byId("message").addEventListener("input", resize);
  byId("new").addEventListener("click", restart);
  byId("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || "system";
    setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  });
  for (const way of Object.keys(WAYS)) byId(`with-${way}`).addEventListener("change", compare);
  byId("key-form").addEventListener("submit", () => {
    setKey(byId("key").value);
    connect();
  });
  byId("examples").append(
    ...EXAMPLES.map((text) => {
      const item = element("li");
      const button = element("button", "", text);
      button.type = "button";
      button.addEventListener("click", async () => {
        if (!state.model) await connect();
        if (state.model) send(text);
      });
      item.append(button);
      return item;
    }),
  );
  document.addEventListener("keydown", onKey);
  setTheme(localStorage.getItem("polyreply-theme") || "system");
  connect();
}

start();
