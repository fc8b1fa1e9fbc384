// Drives the forge double with the official client and checks every exchange against GitHub's published description.
// Usage: node check.mjs URL TOKEN OWNER NAME BRANCH, with the packages of package.json in NODE_MODULES.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

const modules = createRequire(process.env.NODE_MODULES + "/x.js");
const { Octokit } = await import(modules.resolve("octokit"));
const Ajv = modules("ajv").default;
const addFormats = modules("ajv-formats").default;
const [url, token, owner, repo, branch] = process.argv.slice(2);

const path = modules.resolve("@octokit/openapi").replace(/index\.js$/, "generated/api.github.com.json");
const description = JSON.parse(readFileSync(path, "utf8"));
const ajv = new Ajv({ strict: false, validateFormats: true });
addFormats(ajv);
ajv.addSchema(description, "github");

// GitHub's own URLs have templates, such as `{/sha}`, that the format `uri` does not allow.
ajv.addFormat("uri", (text) => /^https?:\/\//.test(text));

let checked = 0;
function check(pointer, value, what) {
  const validate = ajv.getSchema(`github#${pointer}`) ?? ajv.compile({ $ref: `github#${pointer}` });
  if (!validate(value)) {
    throw new Error(`${what}: ${ajv.errorsText(validate.errors)}`);
  }
  checked += 1;
}

const escape = (part) => part.replaceAll("~", "~0").replaceAll("/", "~1");

function checkResponse(options, status, data) {
  const method = options.method.toLowerCase();
  const operation = description.paths[options.url]?.[method];
  assert(operation, `${method} ${options.url} is not described`);
  const found = operation.responses[status];
  assert(found, `${method} ${options.url} does not describe the status ${status}`);
  const place = found.$ref
    ? found.$ref.slice(1)
    : `/paths/${escape(options.url)}/${method}/responses/${status}`;
  const response = found.$ref ? place.split("/").slice(1).reduce((at, key) => at[key], description) : found;
  const media = response.content && Object.keys(response.content)[0];
  if (media) {
    check(`${place}/content/${escape(media)}/schema`, data, `${method} ${options.url} → ${status}`);
  }
}

const octokit = new Octokit({ auth: token, baseUrl: url, retry: { enabled: false }, throttle: { enabled: false } });
octokit.hook.wrap("request", async (request, options) => {
  const template = { method: options.method, url: options.url };
  try {
    const response = await request(options);
    checkResponse(template, response.status, response.data);
    return response;
  } catch (error) {
    if (error.response) {
      checkResponse(template, error.response.status, error.response.data);
    }
    throw error;
  }
});

const rest = octokit.rest;
const place = { owner, repo };
const refused = async (status, request) => {
  const error = await request.then(() => null, (error) => error);
  assert.equal(error?.status, status, `expected ${status}, found ${error}`);
};

const repository = await rest.repos.get(place);
const base = repository.data.default_branch;
const head = await rest.git.getRef({ ...place, ref: `heads/${branch}` });
await rest.git.createRef({ ...place, ref: "refs/heads/other", sha: head.data.object.sha });
await refused(422, rest.git.createRef({ ...place, ref: "refs/heads/other", sha: head.data.object.sha }));
const created = await rest.pulls.create({ ...place, title: "One", head: branch, base, body: "text" });
await refused(422, rest.pulls.create({ ...place, title: "Two", head: branch, base }));
const number = created.data.number;
const listed = await rest.pulls.list({ ...place, head: `${owner}:${branch}`, state: "all" });
assert.deepEqual(listed.data.map((pull) => pull.number), [number]);
const changed = await rest.pulls.update({ ...place, pull_number: number, title: "Changed", body: "more" });
assert.equal(changed.data.title, "Changed");
const shown = await rest.pulls.get({ ...place, pull_number: number });
assert.equal(shown.data.mergeable, true);
await rest.checks.listForRef({ ...place, ref: shown.data.head.sha });
await rest.repos.getCombinedStatusForRef({ ...place, ref: shown.data.head.sha });
const reviews = await rest.pulls.listReviews({ ...place, pull_number: number });
assert.equal(reviews.data.length, 1);
await refused(404, rest.pulls.get({ ...place, pull_number: 99 }));
await refused(409, rest.pulls.merge({ ...place, pull_number: number, sha: base.padEnd(40, "0") }));
const merged = await rest.pulls.merge({ ...place, pull_number: number, sha: shown.data.head.sha, merge_method: "squash" });
assert.equal(merged.data.merged, true);
await refused(405, rest.pulls.merge({ ...place, pull_number: number }));
await rest.git.deleteRef({ ...place, ref: `heads/${branch}` });
await refused(422, rest.git.deleteRef({ ...place, ref: `heads/${branch}` }));
const after = await rest.pulls.get({ ...place, pull_number: number });
assert.deepEqual([after.data.merged, after.data.state], [true, "closed"]);
console.log(`checked ${checked} responses`);
