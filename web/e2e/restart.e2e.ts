import { execFileSync } from "node:child_process";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Browser } from "playwright-core";
import { createSandbox, launchBrowser, openPage, openSandbox, removeSandbox, RESTART_PROGRAM, timeline } from "./browser";

let browser: Browser;
beforeAll(async () => { browser = await launchBrowser(); });
afterAll(async () => { await browser.close(); });

it.skipIf(RESTART_PROGRAM === "")("shows every step once over a restart of the server", async () => {
  const { page, context, incidents } = await openPage(browser);
  const steps = Array.from({ length: 12 }, (_, index) => `step-${index + 1}-end`);
  const prompt = steps.map((step) => `say ${step}\nwait 1`).join("\n");
  const id = await createSandbox(page, { prompt, title: "Over a restart" });
  await openSandbox(page, id, "events");
  await timeline(page).getByText("step-2-end", { exact: true }).waitFor();
  execFileSync(RESTART_PROGRAM, { stdio: "inherit" });
  await timeline(page).getByText("step-12-end", { exact: true }).waitFor();

  const counts = await page.evaluate(async (path) => {
    const response = await fetch(path, { headers: { "X-Atoll-Page": "1" } });
    const { items } = (await response.json()) as { items: { seq: number }[] };
    return items.map((event) => event.seq);
  }, `/api/v1/sandboxes/${id}/events?limit=500`);
  expect(counts).toEqual(counts.map((_, index) => index + 1));
  // The page's own log says how many events it holds, out of how many there are.
  const filter = page.getByLabel("Filter events");
  for (const step of steps) {
    await filter.fill(`agent.message ${step}`);
    await page.getByRole("status").getByText(/^1 of /).waitFor();
  }
  expect(incidents).toEqual([]);
  await removeSandbox(page, id);
  await context.close();
});
