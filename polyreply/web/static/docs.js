// Shows openapi.json as a page: each operation with the fields of its body and the statuses of its answers.

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function resolve(schema, root) {
  return schema && schema.$ref ? resolve(root.components.schemas[schema.$ref.split("/").pop()], root) : schema || {};
}

function typeName(schema, root) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf || schema.oneOf) return (schema.anyOf || schema.oneOf).map((one) => typeName(one, root)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `${typeName(schema.items || {}, root)}[]`;
  return schema.type || "any";
}

function fieldTable(schema, root) {
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const title of ["field", "type", "meaning"]) head.append(element("th", title));
  const body = table.createTBody();
  const required = new Set(schema.required || []);
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = body.insertRow();
    row.append(element("td", required.has(name) ? `${name} *` : name));
    row.append(element("td", typeName(field, root)));
    const fallback = field.default === undefined || field.default === null ? "" : ` Default: ${JSON.stringify(field.default)}.`;
    row.append(element("td", `${field.description || ""}${fallback}`));
  }
  return table;
}

function operationSection(method, path, operation, root) {
  const section = element("section");
  const title = element("h2");
  title.append(element("span", method.toUpperCase(), "method"), path);
  section.append(title, element("p", operation.description || operation.summary || ""));
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  if (body) section.append(fieldTable(resolve(body, root), root));
  section.append(element("p", `Answers: ${Object.keys(operation.responses || {}).join(", ")}`, "muted"));
  return section;
}

async function show() {
  const place = document.getElementById("operations");
  const answer = await fetch("/openapi.json");
  if (!answer.ok) {
    place.textContent = `The schema could not be loaded (status ${answer.status}).`;
    return;
  }
  const root = await answer.json();
  document.title = root.info.title;
  document.getElementById("title").textContent = root.info.title;
  document.getElementById("description").textContent = root.info.description || "";
  const sections = Object.entries(root.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => operationSection(method, path, operation, root)),
  );
  place.replaceChildren(...sections);
}

show();
