// Progress of each annotator and live results, refreshed every few seconds.

const REFRESH_MS = 4000;
const byId = (id) => document.getElementById(id);
const token = location.hash.slice(1);

function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function number(value, digits = 2) {
  return value === null ? "–" : value.toFixed(digits);
}

function pValue(value) {
  return value < 0.0001 ? "<0.0001" : value.toFixed(4);
}

function share(part, whole) {
  return whole ? `${part} of ${whole}` : "–";
}

function table(headings, rows) {
  const made = element("table");
  const head = element("tr");
  head.append(...headings.map((heading) => element("th", heading)));
  made.append(head);
  for (const cells of rows) {
    const row = element("tr");
    row.append(...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell))));
    made.append(row);
  }
  return made;
}

function pairCard(pair) {
  const card = element("div", "", "pair");
  const top = element("div", "", "top");
  top.append(element("span", `${pair.systems[0]} against ${pair.systems[1]}`, "names"));
  top.append(element("span", `${pair.question}, ${pair.judgements} judgements`, "muted"));
  card.append(top);
  if (!pair.judgements) return card;
  const bar = element("div", "", "bar");
  for (const outcome of ["win", "tie", "loss"]) {
    const part = element("span", pair.percent[outcome] >= 8 ? `${pair.percent[outcome].toFixed(1)} %` : "", outcome);
    part.style.width = `${pair.percent[outcome]}%`;
    bar.append(part);
  }
  card.append(bar);
  const interval = pair.net_interval ? `, 95 % interval ${pair.net_interval.map((end) => number(end, 1)).join(" to ")}` : "";
  const tests = `p: ${pValue(pair.one_sided)} one-sided, ${pValue(pair.two_sided)} two-sided`;
  card.append(element("p", `wins ${pair.wins}, ties ${pair.ties}, losses ${pair.losses}; ${tests}`, "facts"));
  card.append(element("p", `wins − losses: ${number(pair.net, 1)} %${interval}`, "facts"));
  return card;
}

function annotatorRow(one) {
  const done = element("td");
  const bar = element("progress");
  bar.max = one.items;
  bar.value = one.answered;
  done.append(bar, `${one.answered} of ${one.items}`);
  const seconds = one.median_seconds === null ? "–" : `${number(one.median_seconds, 1)} s`;
  return [
    one.annotator,
    done,
    share(one.same, one.repeats),
    share(one.right, one.gold),
    share(one.agreed, one.shared),
    share(one.side_1, one.side_1 + one.side_2),
    share(one.ties, one.answered),
    seconds,
  ];
}

function rankings(byQuestion) {
  return Object.entries(byQuestion).flatMap(([question, systems]) => {
    const rows = systems.map((one, place) => [
      String(place + 1),
      one.system,
      number(one.strength),
      one.interval ? one.interval.map((end) => number(end)).join(" to ") : "–",
    ]);
    const heading = element("h3", `Bradley–Terry ranking, ${question}`);
    return [heading, table(["place", "system", "strength", "95 % interval"], rows)];
  });
}

function show(results) {
  byId("simulated").hidden = results.simulated === null;
  byId("live").hidden = false;
  byId("pairs").replaceChildren(...results.pairs.map(pairCard));
  byId("rankings").replaceChildren(...rankings(results.rankings));
  const columns = ["name", "answered", "same on repeats", "gold right", "agrees with others", "side 1", "ties", "median time"];
  byId("annotators").replaceChildren(table(columns, results.annotators.map(annotatorRow)));
  const agreement = results.agreement.map((one) => [
    one.question,
    String(one.comparisons),
    number(one.fleiss_kappa),
    number(one.krippendorff_alpha),
    number(one.krippendorff_alpha_ordinal),
  ]);
  const headings = ["question", "comparisons", "Fleiss’ kappa", "Krippendorff’s alpha", "alpha, ordinal"];
  byId("agreement").replaceChildren(table(headings, agreement));
}

function notify(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

async function refresh() {
  try {
    const headers = { Authorization: `Bearer ${token}` };
    const response = await fetch("/api/progress", { headers, cache: "no-store" });
    const body = await response.json();
    if (response.status === 401) return notify(body.error.message);
    if (!response.ok) throw new Error(body.error.message);
    show(body);
    notify("");
  } catch {
    notify("The server cannot be reached. Trying again …");
  }
  setTimeout(refresh, REFRESH_MS);
}

window.addEventListener("hashchange", () => location.reload());
refresh();
