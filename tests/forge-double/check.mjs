// Drives the forge double with the official client and checks every exchange against GitHub's published description.
// Usage: node check.mjs URL TOKEN OWNER NAME BRANCH, with the packages of package.json in NODE_MODULES.
import assert from "node:assert/strict";
import { checkResponse, counts, modules } from "./description.mjs";

const { Octokit } = await import(modules.resolve("octokit"));
const [url, token, owner, repo, branch] = process.argv.slice(2);

const octokit = new Octokit({ auth: token, baseUrl: url, retry: { enabled: false }, throttle: { enabled: false } });
octokit.hook.wrap("request", async (request, options) => {
  const [template, method] = [options.url, options.method.toLowerCase()];
  try {
    const response = await request(options);
    checkResponse(template, method, response.status, response.data);
    return response;
  } catch (error) {
    if (error.response) {
      checkResponse(template, method, error.response.status, error.response.data);
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

const account = await rest.users.getAuthenticated();
assert.equal(account.data.login, owner);
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
console.log(`checked ${counts.responses} responses`);
