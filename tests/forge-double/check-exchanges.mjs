// Checks recorded requests of Atoll's client, and the double's responses, against GitHub's published description.
// Usage: node check-exchanges.mjs FILE, with the packages of package.json in NODE_MODULES.
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";
import { checkRequest, checkResponse, counts, findTemplate } from "./description.mjs";

for (const exchange of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  const method = exchange.method.toLowerCase();
  const url = new URL(exchange.path, "https://api.github.com");
  const template = findTemplate(method, url.pathname);
  assert(template, `${method} ${url.pathname} is not described`);
  checkRequest(template, method, url.searchParams, exchange.body);
  checkResponse(template, method, exchange.status, exchange.response);
}
console.log(`checked ${counts.requests} requests and ${counts.responses} responses`);
