// GitHub's published description of its API, as checks of requests and responses. The packages are in NODE_MODULES.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

export const modules = createRequire(process.env.NODE_MODULES + "/x.js");
const Ajv = modules("ajv").default;
const addFormats = modules("ajv-formats").default;

const path = modules.resolve("@octokit/openapi").replace(/index\.js$/, "generated/api.github.com.json");
const description = JSON.parse(readFileSync(path, "utf8"));

// `nullable` without a type is not valid: such a value is checked as one that cannot be null.
(function removeNullable(value) {
  if (value && typeof value === "object") {
    if (value.nullable === true && !value.type) {
      delete value.nullable;
    }
    Object.values(value).forEach(removeNullable);
  }
})(description);

const ajv = new Ajv({ strict: false, validateFormats: true, coerceTypes: false });
addFormats(ajv);
ajv.addSchema(description, "github");

// GitHub's own URLs have templates, such as `{/sha}`, that the format `uri` does not allow.
ajv.addFormat("uri", (text) => /^https?:\/\//.test(text));
ajv.addFormat("repo.nwo", true);

export const counts = { requests: 0, responses: 0 };
const escape = (part) => part.replaceAll("~", "~0").replaceAll("/", "~1");
const resolve = (place) => place.split("/").slice(1).reduce((at, key) => at[key.replaceAll("~1", "/").replaceAll("~0", "~")], description);

function check(pointer, value, what) {
  const validate = ajv.getSchema(`github#${pointer}`) ?? ajv.compile({ $ref: `github#${pointer}` });
  if (!validate(value)) {
    throw new Error(`${what}: ${ajv.errorsText(validate.errors)}`);
  }
}

// The place of an object that may be a reference to another place.
function follow(place) {
  const found = resolve(place);
  return found?.$ref ? found.$ref.slice(1) : place;
}

export function checkResponse(template, method, status, data) {
  const operation = description.paths[template]?.[method];
  assert(operation, `${method} ${template} is not described`);
  const what = `${method} ${template} → ${status}`;
  assert(operation.responses[status], `${what} is not described`);
  const place = follow(`/paths/${escape(template)}/${method}/responses/${status}`);
  const media = resolve(place).content && Object.keys(resolve(place).content)[0];
  if (media) {
    check(`${place}/content/${escape(media)}/schema`, data, what);
    counts.responses += 1;
  }
}

// The path template of a request. Only the name of a git ref has slashes.
export function findTemplate(method, pathname) {
  const matches = Object.keys(description.paths).filter((template) => {
    const parts = template.split("/").map((part) => part.replace(/[.*+?^$()|[\]\\]/g, "\\$&"));
    const pattern = parts.join("/").replace(/\/git\/(refs?)\/\{ref\}$/, "/git/$1/(.+)").replace(/\{[^}]+\}/g, "([^/]+)");
    return description.paths[template][method] && new RegExp(`^${pattern}$`).test(pathname);
  });
  const parameters = (template) => template.split("{").length;
  return matches.sort((a, b) => parameters(a) - parameters(b))[0];
}

export function checkRequest(template, method, query, body) {
  const what = `${method} ${template}`;
  const at = `/paths/${escape(template)}/${method}`;
  const declared = new Map();
  (resolve(at).parameters ?? []).forEach((_, index) => {
    const place = follow(`${at}/parameters/${index}`);
    const parameter = resolve(place);
    if (parameter.in === "query") {
      declared.set(parameter.name, { place, parameter });
    }
  });
  for (const [name, text] of query) {
    assert(declared.has(name), `${what} has no parameter ${name}`);
    const { place, parameter } = declared.get(name);
    const value = parameter.schema.type === "integer" ? Number(text) : text;
    check(`${place}/schema`, value, `${what}?${name}`);
  }
  for (const [name, { parameter }] of declared) {
    assert(!parameter.required || query.has(name), `${what} needs the parameter ${name}`);
  }
  const described = resolve(at).requestBody;
  assert(described || body === null, `${what} has no body`);
  if (described && (body !== null || described.required)) {
    const place = follow(`${at}/requestBody`);
    const schema = `${place}/content/application~1json/schema`;
    check(schema, body, `${what} body`);
    const known = resolve(follow(schema)).properties ?? {};
    Object.keys(body).forEach((field) => assert(known[field], `${what} has no field ${field}`));
  }
  counts.requests += 1;
}
