// One comparison at a time. An answer is shown as given when the server has saved it; until then it is sent again.

const RETRY_MS = 1500;
const GUARD_MS = 300; // the second half of a double click must not answer the next comparison
const KEYS = { 1: "1", 2: "2", 0: "tie" };

const byId = (id) => document.getElementById(id);
const token = location.hash.slice(1);

let wording = null;
let session = null;
let question = null; // the question on the screen
let shownAt = 0;
let isBusy = true;

class Refused extends Error {
  constructor(error) {
    super(error.message);
    this.code = error.code;
  }
}

async function request(path, body) {
  const headers = { Authorization: `Bearer ${token}` };
  const options = { headers, cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  for (;;) {
    try {
      const response = await fetch(path, options);
      if (response.ok) {
        notify("");
        return await response.json();
      }
      if (response.status < 500) throw new Refused((await response.json()).error);
    } catch (error) {
      if (error instanceof Refused) throw error;
    }
    notify(wording ? wording.retrying : "…", true);
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function notify(text, isWarning = false) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
  byId("notice").classList.toggle("warning", isWarning);
}

function showMessage(title, text, button = "") {
  byId("comparison").hidden = true;
  byId("message").hidden = false;
  byId("message-title").textContent = title;
  const paragraphs = text.split(/\n\s*\n/).map((part) => {
    const paragraph = document.createElement("p");
    paragraph.textContent = part;
    return paragraph;
  });
  byId("message-text").replaceChildren(...paragraphs);
  byId("start").textContent = button;
  byId("start").hidden = !button;
  byId("message-title").focus();
}

function list(tag, texts) {
  return texts.map((text) => {
    const element = document.createElement(tag);
    element.textContent = text || wording.empty;
    element.classList.toggle("empty", !text);
    return element;
  });
}

function showProgress() {
  byId("bar").value = session.done;
  byId("bar").max = session.total;
  byId("progress").textContent = wording.progress.replace("{done}", session.done).replace("{total}", session.total);
  byId("undo").hidden = session.last === null;
}

function showItem() {
  const item = session.item;
  const asked = wording.questions[item.question];
  byId("message").hidden = true;
  byId("comparison").hidden = false;
  byId("new-question").hidden = question === null || question === item.question;
  question = item.question;
  byId("ask").textContent = asked.ask;
  byId("hint").textContent = asked.hint;
  const heading = asked.shows === "all" ? wording.responses : wording.response;
  byId("heading-1").textContent = `${heading} 1`;
  byId("heading-2").textContent = `${heading} 2`;
  byId("context").replaceChildren(...list("p", item.context));
  byId("side-1").replaceChildren(...list("li", item.side_1));
  byId("side-2").replaceChildren(...list("li", item.side_2));
  window.scrollTo(0, 0);
  byId("ask").focus();
}

function show() {
  for (const button of document.querySelectorAll(".choices button")) button.classList.remove("chosen");
  showProgress();
  if (session.item) showItem();
  else showMessage(wording.done_title, wording.done);
  shownAt = performance.now();
  setBusy(false);
}

function setBusy(busy) {
  isBusy = busy;
  for (const button of document.querySelectorAll(".choices button, #undo")) button.disabled = busy;
}

async function send(path, body) {
  setBusy(true);
  let text = "";
  try {
    session = await request(path, { turn: session.turn, ...body });
  } catch (error) {
    if (error.code === "wrong_link" || error.code === "closed") return showMessage(wording.title, error.message);
    session = await request("/api/session");
    text = wording.elsewhere;
  }
  show();
  notify(text);
}

function answer(choice) {
  const seconds = (performance.now() - shownAt) / 1000;
  if (isBusy || byId("comparison").hidden || seconds * 1000 < GUARD_MS) return;
  byId(`choice-${choice}`).classList.add("chosen");
  send("/api/answer", { item: session.item.id, choice, seconds: Math.round(seconds * 10) / 10 });
}

function undo() {
  if (!isBusy && session.last !== null) send("/api/undo", { item: session.last });
}

function onKey(event) {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || isBusy) return;
  if (event.key in KEYS) answer(KEYS[event.key]);
  else if (event.key === "u" || event.key === "U" || event.key === "Backspace") undo();
  else return;
  event.preventDefault();
}

function write() {
  document.documentElement.lang = wording.language;
  document.title = wording.title;
  byId("undo").textContent = wording.undo;
  byId("new-question").textContent = wording.new_question;
  byId("context-heading").textContent = wording.context;
  byId("choice-1").textContent = wording.first;
  byId("choice-2").textContent = wording.second;
  byId("choice-tie").textContent = wording.tie;
  byId("keys").textContent = wording.keys;
}

async function open() {
  wording = await request("/api/wording");
  write();
  try {
    session = await request("/api/session");
  } catch (error) {
    return showMessage(wording.title, error.message);
  }
  if (session.done > 0) return show();
  showProgress();
  showMessage(wording.title, wording.welcome, wording.start);
}

byId("start").addEventListener("click", show);
byId("undo").addEventListener("click", undo);
for (const choice of ["1", "2", "tie"]) {
  byId(`choice-${choice}`).addEventListener("click", (event) => event.detail < 2 && answer(choice));
}
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", () => location.reload());
open();
