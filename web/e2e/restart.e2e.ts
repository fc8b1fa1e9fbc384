import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { createSandbox, listEvents, openSandbox, timeline, type TestServer } from "./browser";
import { expect, it } from "./fixtures";

/** A program that kills this server and starts it again; it returns when the server listens. */
const { E2E_RESTART: PROGRAM, E2E_RESTART_URL: url = "", E2E_RESTART_TOKEN: token = "" } = process.env;
const RESTARTED: TestServer = { url, token };

it.skipIf(PROGRAM === undefined)("shows every step once over a restart of the server, and that it is not connected", async ({ openPage }) => {
  const page = await openPage({}, RESTARTED);
  const steps = Array.from({ length: 8 }, (_, index) => `step-${index + 1}-end`);
  const prompt = steps.map((step) => `say ${step}\nwait 0.5`).join("\n");
  const id = await createSandbox(page, { prompt, title: "Over a restart" });
  await openSandbox(page, id, "events");
  await timeline(page).getByText("step-2-end", { exact: true }).waitFor();
  const offline = page.getByText("Not connected", { exact: false }).first();
  await Promise.all([offline.waitFor(), promisify(execFile)(PROGRAM ?? "")]);
  await timeline(page).getByText("step-8-end", { exact: true }).waitFor();
  await page.getByText("What you see may be old").waitFor({ state: "detached" });

  const seqs = (await listEvents(page, id)).map(({ seq }) => seq);
  expect(seqs).toEqual(seqs.map((_, index) => index + 1));
  // The page's own log says how many events it holds, out of how many there are.
  const filter = page.getByLabel("Filter events");
  for (const step of steps) {
    await filter.fill(`agent.message ${step}`);
    await page.getByRole("status").getByText(/^1 of /).waitFor();
  }
});
